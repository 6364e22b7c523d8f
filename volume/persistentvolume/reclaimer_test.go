package persistentvolume_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// gone checks that an object does not exist any more.
func (w *world) wantGone(kind, namespace, name string) {
	w.t.Helper()
	if o, err := w.store.Get(w.t.Context(), volume.NewObjectRef(kind, namespace, name)); !errors.Is(err, volume.ErrNotFound) {
		w.t.Errorf("%s %s is still there: %+v, %v; events: %s", kind, name, o, err, w.events)
	}
}

// A volume that can go at any moment is no place to say that its storage has to.
func TestVolumeThatIsLetGoKeepsItsStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made, isDefault), pvbuild.NewClaim("data", "2Gi")).withStorage()
		w.start()
		w.settle()
		w.stop()
		w.change("pvc-uid-data", func(pv *v1.PersistentVolume) { pv.Finalizers = []string{"example.com/hold"} })
		w.delete("PersistentVolume", "", "pvc-uid-data")
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.start()
		w.settle()
		w.wantGone("PersistentVolumeClaim", "ops", "data")
		if left := w.stored(); !slices.Equal(left, []string{"pvc-uid-data"}) {
			t.Errorf("storage %v exists", left)
		}
	})
}

func TestRecycling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi", withPolicy(v1.PersistentVolumeReclaimRecycle)), pvbuild.NewClaim("data", "1Gi")).withStorage()
		w.start()
		w.settle()
		w.wantBound("data", "pv")
		w.storage.fail(errors.New("the server does not answer"))
		w.create(pvbuild.NewClaim("next", "1Gi"))
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		w.wantPV("pv", v1.VolumeFailed)
		w.events.want(t, "pv: Warning VolumeFailedRecycle recycling failed: the server does not answer")
		if message := w.pv("pv").Status.Message; message != "recycling failed: the server does not answer" {
			t.Errorf("status.message is %q", message)
		}
		w.storage.fail(nil)
		w.settle()
		w.wantBound("next", "pv")
		w.events.want(t, "pv: Normal VolumeRecycled Volume recycled")
	})
}

// A volume whose claim was deleted under its pods is kept until they are gone,
// and reclaimed then without delay.
func TestReclaimWaitsForTheLastPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := pvbuild.PodOf("data")
		pod.Spec.NodeName = "node1"
		w := newWorld(t, storageClass("fast", made), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")), pod).withStorage()
		w.start()
		w.settle()
		if err := w.api.Delete(t.Context(), volume.NewObjectRef("PersistentVolumeClaim", "ops", "data"), objects.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		if c, err := w.store.Get(t.Context(), volume.NewObjectRef("PersistentVolumeClaim", "ops", "data")); err == nil { // protected: by force
			c := c.(*v1.PersistentVolumeClaim).DeepCopy()
			c.Finalizers = nil
			if _, err := w.api.Update(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		w.settle()
		w.wantPV("pvc-uid-data", v1.VolumeReleased) // nothing has failed
		if message := w.pv("pvc-uid-data").Status.Message; !strings.Contains(message, "Pod ops/pod") {
			t.Errorf("message %q", message)
		}
		w.events.want(t, `pvc-uid-data: Normal VolumeDelete the data of PersistentVolume "pvc-uid-data" is still used by Pod ops/pod`)
		w.delete("Pod", "ops", "pod")
		synctest.Wait()
		w.wantGone("PersistentVolume", "", "pvc-uid-data")
	})
}

func TestWithoutPluginsNothingIsReclaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi", withPolicy(v1.PersistentVolumeReclaimDelete)), pvbuild.NewClaim("data", "1Gi"))
		w.start()
		w.settle()
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		w.wantPV("pv", v1.VolumeFailed)
		w.events.want(t, "pv: Warning VolumeFailedDelete the controller has no plugins")
	})
}

// Whatever call the controller dies at, while volumes are made, emptied and
// deleted: each claim has its own, and nothing is left of those that have gone.
func TestReclaimingAndProvisioningSurviveACrashAtEveryCall(t *testing.T) {
	sweepCrashes(t, 25, func(t *testing.T) *world {
		w := newWorld(t, storageClass("fast", made), pvbuild.NewPV("recycled", "1Gi", withPolicy(v1.PersistentVolumeReclaimRecycle), pvbuild.ForClaim("gone", "gone"), pvbuild.InPhase(v1.VolumeBound), boundByController),
			pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")), pvbuild.NewClaim("next", "1Gi"), pvbuild.NewClaim("short", "1Gi", pvbuild.OfClass("fast"))).withStorage()
		// What a dead process had begun may go on for a moment.
		time.AfterFunc(time.Minute, func() {
			_ = w.api.Delete(t.Context(), volume.NewObjectRef("PersistentVolumeClaim", "ops", "short"), objects.Preconditions{})
		})
		return w
	}, func(w *world) {}, func(w *world) {
		w.wantBound("data", "pvc-uid-data")
		w.wantBound("next", "recycled")
		w.wantGone("PersistentVolumeClaim", "ops", "short")
		w.wantGone("PersistentVolume", "", "pvc-uid-short")
		if left := w.stored(); !slices.Equal(left, []string{"pvc-uid-data"}) {
			w.t.Errorf("storage %v exists", left)
		}
	})
}

// The reclaim policy counts as it is when the claim goes, and so does what keeps
// the volume until its storage has gone.
func TestTheDeletionFinalizerFollowsTheReclaimPolicy(t *testing.T) {
	for _, tc := range []struct {
		made, then v1.PersistentVolumeReclaimPolicy
		left       []string
	}{
		{v1.PersistentVolumeReclaimRetain, v1.PersistentVolumeReclaimDelete, nil},
		{v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRetain, []string{"pvc-uid-data"}},
	} {
		t.Run(string(tc.made+" then "+tc.then), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				class := storageClass("fast", made)
				class.ReclaimPolicy = &tc.made
				w := newWorld(t, class, pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"))).withStorage()
				w.start()
				w.settle()
				w.wantBound("data", "pvc-uid-data")
				w.change("pvc-uid-data", withPolicy(tc.then))
				w.settle()
				if has := slices.Contains(w.pv("pvc-uid-data").Finalizers, "kubernetes.io/pv-controller"); has != (tc.then == v1.PersistentVolumeReclaimDelete) {
					t.Errorf("finalizers with policy %s: %v", tc.then, w.pv("pvc-uid-data").Finalizers)
				}
				w.delete("PersistentVolume", "", "pvc-uid-data") // out of order
				w.settle()
				w.wantBound("data", "pvc-uid-data")
				w.delete("PersistentVolumeClaim", "ops", "data")
				w.settle()
				w.wantGone("PersistentVolume", "", "pvc-uid-data")
				if left := w.stored(); !slices.Equal(left, tc.left) {
					t.Errorf("storage %v exists, want %v", left, tc.left)
				}
			})
		})
	}
}

// A volume that is to be deleted, and that no claim has left any more, goes: its
// storage stays with who took its claim away.
func TestAVolumeWithoutTheClaimThatLeftItCanGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"))).withStorage()
		w.start()
		w.settle()
		w.storage.fail(errors.New("the server does not answer"))
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		w.change("pvc-uid-data", func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "" })
		w.settle()
		w.storage.fail(nil)
		w.delete("PersistentVolume", "", "pvc-uid-data")
		w.settle()
		w.wantGone("PersistentVolume", "", "pvc-uid-data")
		if left := w.stored(); !slices.Equal(left, []string{"pvc-uid-data"}) {
			t.Errorf("storage %v exists", left)
		}
	})
}

// A pod that waits for the volume does not keep it from being emptied.
func TestRecyclingDoesNotWaitForAPodThatWaitsForTheVolume(t *testing.T) {
	for _, node := range []string{"", "node1"} {
		t.Run("on node "+node, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, pvbuild.NewPV("pv", "1Gi", withPolicy(v1.PersistentVolumeReclaimRecycle)), pvbuild.NewClaim("data", "1Gi")).withStorage()
				w.start()
				w.settle()
				w.storage.fail(errors.New("not yet"))
				w.delete("PersistentVolumeClaim", "ops", "data")
				time.Sleep(time.Minute)
				w.create(pvbuild.NewClaim("data", "1Gi", func(c *v1.PersistentVolumeClaim) { c.UID = "second" }))
				time.Sleep(time.Minute)
				pod := pvbuild.PodOf("data")
				pod.Spec.NodeName = node
				w.create(pod)
				w.storage.fail(nil)
				w.settle()
				w.wantBound("data", "pv")
			})
		})
	}
}

// What a driver deletes, wherever that runs, is not for this controller: it stays
// Released, and can go once its driver lets it.
func TestWhatADriverDeletesStaysReleased(t *testing.T) {
	csi := func(pv *v1.PersistentVolume) {
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: "7"}}
	}
	migrated := func(pv *v1.PersistentVolume) {
		pv.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": storagePlugin, "pv.kubernetes.io/migrated-to": "disk.example.com"}
	}
	for name, change := range map[string]pvbuild.Option{"a CSI volume that nobody says to have made": csi, "a volume that was migrated": migrated} {
		for _, policy := range []v1.PersistentVolumeReclaimPolicy{v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle} {
			t.Run(name+", "+string(policy), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, pvbuild.NewPV("pv", "1Gi", withPolicy(policy), change), pvbuild.NewClaim("data", "1Gi")).withStorage()
					w.start()
					w.settle()
					w.wantBound("data", "pv")
					w.delete("PersistentVolumeClaim", "ops", "data")
					w.settle()
					w.wantPV("pv", v1.VolumeReleased)
					if n := w.storage.asked(); n != 0 || w.events.count("pv: Warning") != 0 || w.pv("pv").Status.Message != "" {
						t.Errorf("the plugin was asked %d times; message %q, events: %s", n, w.pv("pv").Status.Message, w.events)
					}
					w.delete("PersistentVolume", "", "pv") // as its driver does
					w.settle()
					w.wantGone("PersistentVolume", "", "pv")
				})
			})
		}
	}
}

// A claim says what the file system in its volume has, where that was expanded for
// an earlier claim and the file system was not.
func TestAVolumeThatWasExpandedInPartSaysWhatItHas(t *testing.T) {
	for before, want := range map[string]string{"1Gi": "1Gi", "": "2Gi", "nonsense": "2Gi"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, pvbuild.NewPV("pv", "2Gi", func(pv *v1.PersistentVolume) {
				pv.Annotations = map[string]string{"volume.alpha.kubernetes.io/pre-resize-capacity": before}
			}), pvbuild.NewClaim("data", "1Gi"))
			w.start()
			w.settle()
			w.wantBound("data", "pv")
			if got := w.claim("data").Status.Capacity[v1.ResourceStorage]; got.String() != want {
				t.Errorf("%q: the claim has %s, want %s", before, got.String(), want)
			}
		})
	}
}

// Who keeps a volume while its users are looked for has kept its data.
func TestAVolumeThatIsKeptAtTheLastMomentKeepsItsData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made, isDefault), pvbuild.NewClaim("data", "1Gi")).withStorage()
		w.start()
		w.settle()
		w.wantBound("data", "pvc-uid-data")
		before := w.storage.asked()
		var kept atomic.Bool
		w.client.Inject(fault.Fault[objectstest.Call]{After: true, Match: func(call objectstest.Call) bool { return call.Verb == "list" && call.Ref.Kind == "Pod" }, Hook: func() {
			if w.storage.asked() > before && !kept.Swap(true) { // by the plugin that is to delete it
				w.change("pvc-uid-data", func(pv *v1.PersistentVolume) {
					pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
				})
			}
		}})
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		if left := w.stored(); !kept.Load() || !slices.Equal(left, []string{"pvc-uid-data"}) {
			t.Errorf("kept: %v; storage %v exists; events: %s", kept.Load(), left, w.events)
		}
	})
}

// deletedVolumeCases are what a volume can be in the midst of when it is deleted.
func deletedVolumeCases() map[string][]metav1.Object {
	left := func(policy v1.PersistentVolumeReclaimPolicy) *v1.PersistentVolume {
		return pvbuild.NewPV("pvc-uid-data", "1Gi", pvbuild.ForClaim("data", "uid-gone"), withPolicy(policy), pvbuild.InPhase(v1.VolumeReleased))
	}
	return map[string][]metav1.Object{
		"a free volume is bound":       {pvbuild.NewPV("pvc-uid-data", "1Gi"), pvbuild.NewClaim("data", "1Gi")},
		"a named volume is bound":      {pvbuild.NewPV("pvc-uid-data", "1Gi"), pvbuild.NewClaim("data", "1Gi", pvbuild.Naming("pvc-uid-data"))},
		"both sides have agreed":       {pvbuild.NewPV("pvc-uid-data", "1Gi", pvbuild.ForClaim("data", "")), pvbuild.NewClaim("data", "1Gi", pvbuild.Naming("pvc-uid-data"))},
		"a volume meant for the claim": {pvbuild.NewPV("pvc-uid-data", "1Gi", pvbuild.ForClaim("data", "")), pvbuild.NewClaim("data", "1Gi")},
		"a volume is made":             {storageClass("made", made), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("made"))},
		"a volume is deleted":          {left(v1.PersistentVolumeReclaimDelete)},
		"a volume is emptied":          {left(v1.PersistentVolumeReclaimRecycle)},
	}
}

// Whenever a volume is deleted, between any two writes of its binding, its making
// and its reclaim, whether or not the controller dies there, or hears of its own write
// long after that: both sides come to an end, and once the claim is gone, so is the
// volume.
func TestAVolumeThatIsDeletedInTheMidstGoesWithItsClaim(t *testing.T) {
	ref := volume.NewObjectRef("PersistentVolume", "", "pvc-uid-data")
	play := func(t *testing.T, all []metav1.Object, n int, dies, late bool) (more bool) {
		w := newWorld(t).withStorage()
		remove := func() { _ = w.api.Delete(context.Background(), ref, objects.Preconditions{}) }
		w.start()
		w.settle()
		var writes atomic.Int64
		if dies {
			w.died = w.client.CrashAt(n, true)
		} else {
			w.client.Inject(fault.Fault[objectstest.Call]{After: true, Match: isWrite, Hook: func() {
				if writes.Add(1) == int64(n) {
					remove()
					if late {
						time.Sleep(time.Minute)
					}
				}
			}})
		}
		for _, o := range all {
			w.create(o)
		}
		w.settle()
		more = writes.Load() >= int64(n)
		if dies {
			more = w.dead()
			w.stop()
			remove()
			w.start()
			w.settle()
		}
		if err := w.quiet(); err != nil {
			t.Errorf("after %d: %v; events: %s", n, err, w.events)
		}
		w.wantPairBound("data", "pvc-uid-data")
		_ = w.api.Delete(t.Context(), pvbuild.ClaimRef("data"), objects.Preconditions{})
		w.settle()
		if o, err := w.store.Get(t.Context(), ref); err == nil && o.GetDeletionTimestamp() != nil {
			t.Errorf("after %d the volume stays: %+v, events: %s", n, o, w.events)
		}
		return more
	}
	for name, all := range deletedVolumeCases() {
		for _, how := range []string{"goes on", "hears late", "dies"} {
			t.Run(name+", "+how, func(t *testing.T) {
				for n, more := 1, true; more && !t.Failed(); n++ {
					synctest.Test(t, func(t *testing.T) { more = play(t, copies(all), n, how == "dies", how == "hears late") })
				}
			})
		}
	}
}

// wantPairBound checks that a claim and a volume that name each other are both Bound,
// also where one is being deleted; either may be gone.
func (w *world) wantPairBound(claim, pv string) {
	w.t.Helper()
	c, err := objects.Get[*v1.PersistentVolumeClaim](w.t.Context(), w.store, pvbuild.ClaimRef(claim))
	v, err2 := objects.Get[*v1.PersistentVolume](w.t.Context(), w.store, volume.NewObjectRef("PersistentVolume", "", pv))
	if errors.Is(err, volume.ErrNotFound) || errors.Is(err2, volume.ErrNotFound) {
		return
	}
	if err != nil || err2 != nil {
		w.t.Fatal(err, err2)
	}
	if ref := v.Spec.ClaimRef; c.Spec.VolumeName != pv || ref == nil || ref.UID != c.UID {
		return
	}
	if c.Status.Phase != v1.ClaimBound || v.Status.Phase != v1.VolumeBound {
		w.t.Errorf("claim %s is %q and its volume %s %q; events: %s", claim, c.Status.Phase, pv, v.Status.Phase, w.events)
	}
}

func copies(all []metav1.Object) (anew []metav1.Object) {
	for _, o := range all {
		anew = append(anew, o.(runtime.Object).DeepCopyObject().(metav1.Object))
	}
	return anew
}
