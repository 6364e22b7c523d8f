package persistentvolume_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/persisted"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// newIncompleteWorld is one with everything in it that waits until the pods are
// complete: claims that are being deleted, one of them in use by a pod that is
// announced late, orphans, volumes to be deleted and to be emptied.
func newIncompleteWorld(t *testing.T) *world {
	w := newForgetfulWorld(t, pvbuild.MemoryDir(t), storageClass("fast", made),
		pvbuild.NewPV("kept", "1Gi"), pvbuild.NewPV("recycled", "1Gi", withPolicy(v1.PersistentVolumeReclaimRecycle)), pvbuild.NewPV("unused", "9Gi", pvbuild.Class("nobody's")),
		pvbuild.NewClaim("kept", "1Gi", pvbuild.Naming("kept")), pvbuild.NewClaim("recycled", "1Gi", pvbuild.Naming("recycled")),
		pvbuild.NewClaim("deleted", "1Gi", pvbuild.OfClass("fast")), pvbuild.NewClaim("used", "1Gi", pvbuild.OfClass("fast")), pvbuild.NewClaim("orphan", "1Gi", pvbuild.OfClass("fast"), ownedBy("gone")))
	w.incomplete = true
	return w
}

func ownedBy(pod string) pvbuild.ClaimOption {
	return func(c *v1.PersistentVolumeClaim) {
		owner := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod, UID: types.UID(pod)}}
		c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1.SchemeGroupVersion.WithKind("Pod"))}
	}
}

func (w *world) deleteMost() {
	for _, name := range []string{"kept", "recycled", "deleted", "used"} {
		_ = w.api.Delete(w.t.Context(), volume.NewObjectRef("PersistentVolumeClaim", "ops", name), objects.Preconditions{})
	}
	for _, name := range []string{"kept", "unused"} {
		_ = w.api.Delete(w.t.Context(), volume.NewObjectRef("PersistentVolume", "", name), objects.Preconditions{})
	}
	w.manifests = slices.DeleteFunc(w.manifests, isRecorded) // kubectl delete -f
}

// wantEverything checks that nothing was let go of.
func (w *world) wantEverything() {
	w.t.Helper()
	for _, name := range []string{"kept", "recycled", "deleted", "used", "orphan"} {
		w.wantClaim(name, v1.ClaimBound)
	}
	for _, name := range []string{"kept", "recycled", "pvc-uid-deleted", "pvc-uid-used", "pvc-uid-orphan"} {
		w.wantPV(name, v1.VolumeBound)
	}
	w.wantPV("unused", v1.VolumeAvailable)
	if left := w.stored(); !slices.Equal(left, []string{"pvc-uid-deleted", "pvc-uid-orphan", "pvc-uid-used"}) {
		w.t.Errorf("storage %v exists", left)
	}
}

// wantMostGone checks that all was let go of that no pod uses.
func (w *world) wantMostGone() {
	w.t.Helper()
	for _, name := range []string{"kept", "recycled", "deleted", "orphan"} {
		w.wantGone("PersistentVolumeClaim", "ops", name)
	}
	for _, name := range []string{"kept", "unused", "pvc-uid-deleted", "pvc-uid-orphan"} {
		w.wantGone("PersistentVolume", "", name)
	}
	w.wantPV("recycled", v1.VolumeAvailable)
	w.wantBound("used", "pvc-uid-used")
	if left := w.stored(); !slices.Equal(left, []string{"pvc-uid-used"}) {
		w.t.Errorf("storage %v exists", left)
	}
}

func TestNothingIsLetGoBeforeThePodsAreComplete(t *testing.T) {
	for name, restart := range map[string]bool{"in one process": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newIncompleteWorld(t)
				w.start()
				w.settle()
				w.wantEverything()
				w.deleteMost()
				w.settle()
				w.wantEverything()
				if restart {
					w.stop()
					w.start()
					w.settle()
					w.wantEverything()
				}
				// Meanwhile everything else goes on.
				w.create(pvbuild.NewPV("late", "5Gi", pvbuild.Class("late")))
				w.create(pvbuild.NewClaim("late", "5Gi", pvbuild.OfClass("late")))
				w.create(pvbuild.NewClaim("made", "1Gi", pvbuild.OfClass("fast")))
				w.settle()
				w.wantBound("late", "late")
				w.wantBound("made", "pvc-uid-made")
				w.create(onNode(pvbuild.PodOf("used"), "user"))
				w.delete("PersistentVolumeClaim", "ops", "made")
				w.settle()
				w.wantBound("made", "pvc-uid-made")

				before := w.storage.asked()
				w.complete()
				if err := w.controller.Idle(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				w.wantMostGoneWithout("made")
				w.settle()
				if n := w.storage.asked() - before; n != 4 { // three to delete, one to empty
					t.Errorf("storage was reclaimed %d times", n)
				}
				w.delete("Pod", "ops", "user")
				w.settle()
				w.wantGone("PersistentVolume", "", "pvc-uid-used")
			})
		})
	}
}

func (w *world) wantMostGoneWithout(claim string) {
	w.t.Helper()
	w.wantGone("PersistentVolumeClaim", "ops", claim)
	w.wantGone("PersistentVolume", "", "pvc-uid-"+claim)
	w.wantMostGone()
}

// Nothing asks again and again whether the pods are complete.
func TestNoPollingUntilThePodsAreComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newIncompleteWorld(t)
		w.start()
		w.settle()
		w.deleteMost()
		w.settle()
		before := w.client.Count()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if after := w.client.Count(); after != before {
			t.Errorf("%d calls were made in a day in which nothing happened", after-before)
		}
	})
}

// A cache that is behind costs some tries, and not one after the other until it
// has caught up.
func TestLettingGoWithALateCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newIncompleteWorld(t)
		w.start()
		w.settle()
		w.deleteMost()
		if _, err := w.store.Create(t.Context(), onNode(pvbuild.PodOf("used"), "user")); err != nil {
			t.Fatal(err)
		}
		w.settle()
		releases := []func(){w.client.Hold("PersistentVolumeClaim"), w.client.Hold("PersistentVolume")}
		before := w.client.Count()
		w.complete()
		w.settle()
		if n := w.client.Count() - before; n > 1000 {
			t.Errorf("%d calls were made in an hour", n)
		}
		for _, release := range releases {
			release()
		}
		w.settle()
		w.wantMostGone()
	})
}

// Whenever the process dies, before the pods were complete or after: what is
// being deleted still is, and goes when the pods are complete, and not before.
func TestLettingGoSurvivesACrashAtEveryStep(t *testing.T) {
	prepare := func(t *testing.T) *world {
		w := newIncompleteWorld(t)
		w.afterStart = func() {
			time.Sleep(time.Minute)
			w.deleteMost()
			time.Sleep(time.Minute)
			_, _ = w.store.Create(t.Context(), onNode(pvbuild.PodOf("used"), "user"))
			if w.complete != nil {
				w.complete()
			}
		}
		return w
	}
	meanwhile := func(w *world) { w.manifests = slices.DeleteFunc(w.manifests, isRecorded) }
	check := func(w *world) {
		before := w.stored()
		claims, _, err := persisted.Read(w.records)
		if err != nil {
			w.t.Fatal(err)
		}
		w.deleteMost()
		if _, err := w.store.Create(w.t.Context(), onNode(pvbuild.PodOf("used"), "user")); err != nil {
			w.t.Fatal(err)
		}
		w.settle()
		if after := w.stored(); !slices.Equal(before, after) {
			w.t.Errorf("of the storage %v there is %v before the pods are complete", before, after)
		}
		for _, c := range claims {
			if now, err := w.store.Get(w.t.Context(), volume.NewObjectRef("PersistentVolumeClaim", "ops", c.Name)); err != nil || now.GetDeletionTimestamp() == nil && c.Name != "orphan" {
				w.t.Errorf("claim %s is now %v, %v", c.Name, now, err)
			}
		}
		used := slices.ContainsFunc(claims, func(c *v1.PersistentVolumeClaim) bool { return c.Name == "used" && c.Status.Phase == v1.ClaimBound })
		w.complete()
		w.settle()
		for _, c := range claims {
			if c.Name != "used" {
				w.wantGone("PersistentVolumeClaim", "ops", c.Name)
				w.wantGone("PersistentVolume", "", "pvc-"+string(c.UID))
			}
		}
		left := w.stored()
		if used {
			w.wantBound("used", "pvc-uid-used")
			left = slices.DeleteFunc(left, func(name string) bool { return name == "pvc-uid-used" })
		}
		if len(left) > 0 {
			w.t.Errorf("storage %v is left", left)
		}
	}
	t.Run("calls", func(t *testing.T) { sweepCrashes(t, 60, prepare, meanwhile, check) })
	t.Run("disk", func(t *testing.T) { sweepDiskCrashes(t, 40, prepare, meanwhile, check) })
}

func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made)).withStorage()
		w.uncached, w.config.Objects = true, w.store
		idle := persistentvolume.NewController(w.config)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := idle.Idle(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before it is run: %v", err)
		}
		cancel()
		w.start()
		for n, name := range []string{"a", "b", "c"} {
			w.create(pvbuild.NewPV(name, "1Gi"))
			w.create(pvbuild.NewClaim(name, "1Gi"))
			w.create(pvbuild.NewClaim("made-"+name, "1Gi", pvbuild.OfClass("fast")))
			// Even if nobody has told the controller yet.
			if err := w.controller.Idle(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.wantBound(name, w.claim(name).Spec.VolumeName)
			w.wantBound("made-"+name, "pvc-uid-made-"+name)
			w.delete("PersistentVolumeClaim", "ops", "made-"+name)
			if err := w.controller.Idle(t.Context()); err != nil {
				t.Fatal(err)
			}
			if left := w.stored(); len(left) > 0 {
				t.Errorf("round %d: storage %v exists", n, left)
			}
		}
		// What waits for its next try is idle.
		w.storage.fail(errors.New("the server is down"))
		w.create(pvbuild.NewClaim("failing", "1Gi", pvbuild.OfClass("fast")))
		began := time.Now()
		if err := w.controller.Idle(t.Context()); err != nil || time.Since(began) > time.Second {
			t.Errorf("err = %v after %v", err, time.Since(began))
		}
		w.wantClaim("failing", v1.ClaimPending)
		w.stop()
		if err := w.controller.Idle(t.Context()); !errors.Is(err, persistentvolume.ErrNotRunning) {
			t.Errorf("after it has ended: %v", err)
		}
	})
}

// Idle does not take a controller that is told to end, and gives up what it had to do, for one
// that has done everything.
func TestIdleOfAControllerThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made)).withStorage()
		w.uncached = true
		w.start()
		w.storage.inTheMidst(func(ctx context.Context, _, _ string) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		w.create(pvbuild.NewClaim("hanging", "1Gi", pvbuild.OfClass("fast")))
		idle := make(chan error, 1)
		go func() { idle <- w.controller.Idle(t.Context()) }()
		synctest.Wait()
		w.stop()
		if err := <-idle; !errors.Is(err, persistentvolume.ErrNotRunning) {
			t.Errorf("Idle: %v", err)
		}
	})
}

func external(c *storagev1.StorageClass) { c.Provisioner = "csi.example.com" }

func complete(c *v1.PersistentVolumeClaim) {
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
}

func TestExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made), storageClass("waits", waitForConsumer), storageClass("external", external),
			pvbuild.NewPV("pv", "1Gi"), pvbuild.NewPV("taken", "1Gi", pvbuild.ForClaim("someone", "else")),
			pvbuild.NewClaim("bound", "1Gi"), pvbuild.NewClaim("large", "5Gi"), pvbuild.NewClaim("nowhere", "1Gi", pvbuild.Naming("nix")), pvbuild.NewClaim("elsewhere", "1Gi", pvbuild.Naming("taken")),
			pvbuild.NewClaim("waiting", "1Gi", pvbuild.OfClass("waits")), pvbuild.NewClaim("classless", "1Gi", pvbuild.OfClass("nix")), pvbuild.NewClaim("failing", "1Gi", pvbuild.OfClass("fast")),
			pvbuild.NewClaim("external", "1Gi", pvbuild.OfClass("external")), pvbuild.NewClaim("lost", "1Gi", pvbuild.Naming("gone"), complete)).withStorage()
		explain := func(name string) error {
			return w.controller.Explain(types.NamespacedName{Namespace: "ops", Name: name})
		}
		w.startFailing(errors.New("the server is down"))
		if err := w.controller.Idle(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := explain("bound"); err != nil {
			t.Errorf("err = %v of a bound claim", err)
		}
		for name, want := range map[string]struct {
			is   error
			says string
		}{
			"large": {claimbinding.ErrUnbound, "belongs to another claim"}, "nowhere": {claimbinding.ErrUnbound, `"nix"`}, "elsewhere": {claimbinding.ErrUnbound, "else"},
			"waiting": {index.ErrWaitsForConsumer, "create a pod"}, "classless": {claimbinding.ErrUnbound, `"nix" not found`},
			"failing": {claimbinding.ErrUnbound, "the server is down"}, "external": {claimbinding.ErrUnbound, "csi.example.com"},
			"lost": {claimbinding.ErrLost, "gone"}, "missing": {volume.ErrNotFound, "missing"},
		} {
			err := explain(name)
			if !errors.Is(err, want.is) || !errors.Is(err, claimbinding.ErrUnbound) || !strings.Contains(err.Error(), want.says) {
				t.Errorf("%s: %v, want one that says %q and is %v", name, err, want.says, want.is)
			}
			if unbound, ok := errors.AsType[*index.UnboundError](err); !ok || unbound.Claim.Name != name {
				t.Errorf("%s: %v is no error of that claim", name, err)
			}
		}
		// It is explained as it is now.
		w.storage.fail(nil)
		w.create(pvbuild.NewPV("large", "5Gi"))
		w.settle()
		for _, name := range []string{"large", "failing"} {
			if err := explain(name); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
