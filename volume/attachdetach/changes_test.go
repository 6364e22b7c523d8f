package attachdetach_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/attachdetach"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// A volume that was to go, and is wanted again before its node was told, is listed again.
func TestAVolumeThatIsWantedAgainIsListedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		mend := w.client.Inject(fault.Fault[objectstest.Call]{Match: onCall("update status", "Node"), Err: errLost})
		w.deletePod("p")
		w.settle()
		w.agents["n0"].setOff(true)
		w.addPod("q", "n0", "a")
		w.settle()
		mend()
		w.settle()
		w.wantAttachments("a@n0+")
		if listed := w.node("n0").Status.VolumesAttached; len(listed) != 1 || listed[0].Name != uniqueName("a") {
			t.Errorf("the node lists %v", listed)
		}
	})
}

// made is an attachment as a controller makes it.
func made(disk, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachmentRef(disk, node).Name, Annotations: map[string]string{attachdetach.VolumeAnnotation: string(uniqueName(disk))}},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &disk}},
	}
}

// A node that no watch has told of may be there all the same.
func TestANodeThatNoWatchHasToldOfKeepsItsVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		synctest.Wait() // it has listed the nodes
		release := w.client.Hold("Node")
		w.addNode("n1")
		w.addPod("p", "n1", "a")
		synctest.Wait()
		w.create(made("a", "n1"))
		w.settle()
		if slices.ContainsFunc(w.client.Calls(), onCall("delete", "VolumeAttachment")) {
			t.Error("it is detached")
		}
		release()
		w.settle()
		w.wantAttachments("a@n1+")
	})
}

// Only the attachment that was to go is deleted, and not one that was made since.
func TestAnAttachmentThatWasMadeAnewIsNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		var remade types.UID
		w.client.Inject(fault.Fault[objectstest.Call]{Match: onCall("delete", "VolumeAttachment"), Nth: 1, Hook: func() {
			if err := w.store.Delete(t.Context(), attachmentRef("a", "n0"), noPreconditions); err != nil {
				t.Error(err)
			}
			time.Sleep(2 * slowness)
			stored, err := w.store.Create(t.Context(), made("a", "n0"))
			if err != nil {
				t.Error(err)
				return
			}
			remade = stored.GetUID()
			w.addPod("q", "n0", "a")
			time.Sleep(time.Minute)
		}})
		w.deletePod("p")
		w.settle()
		w.wantAttachments("a@n0+")
		now, err := objects.Get[*storagev1.VolumeAttachment](t.Context(), w.store, attachmentRef("a", "n0"))
		if err != nil || remade == "" || now.UID != remade {
			t.Errorf("the attachment is %q, want %q (%v)", now.GetUID(), remade, err)
		}
	})
}

// What ends a wait is a change of another object than the pod.
func TestAChangeEndsTheWait(t *testing.T) {
	for name, test := range map[string]struct{ prepare, change func(w *world) }{
		"the CSINode allows more": {
			prepare: func(w *world) {
				w.create(csiNode("n0", 1))
				w.addPod("p", "n0", "a")
			},
			change: func(w *world) {
				if _, err := w.store.Update(w.t.Context(), csiNode("n0", 2)); err != nil {
					w.t.Fatal(err)
				}
			},
		},
		"the node is managed": {
			prepare: func(w *world) { w.changeNode("n0", func(n *v1.Node) { n.Annotations = nil }) },
			change: func(w *world) {
				w.changeNode("n0", func(n *v1.Node) { n.Annotations = map[string]string{attachdetach.ManagedAnnotation: "true"} })
			},
		},
		"the node has the label that the volume asks for": {
			prepare: func(w *world) {
				zone := []v1.NodeSelectorRequirement{{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{"z"}}}
				w.change(pvapi.KindVolume, "", "b", func(o metav1.Object) {
					o.(*v1.PersistentVolume).Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: zone}}}}
				})
			},
			change: func(w *world) {
				w.changeNode("n0", func(n *v1.Node) { n.Labels = map[string]string{v1.LabelTopologyZone: "z"} })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, "a", "b")
				test.prepare(w)
				w.settle()
				before := w.attachments()
				w.addPod("q", "n0", "b")
				w.settle()
				if got := w.attachments(); !slices.Equal(got, before) {
					t.Fatalf("attachments %v, want %v", got, before)
				}
				test.change(w)
				w.settle()
				w.wantAttachments(append(before, "b@n0+")...)
			})
		})
	}
}

// An attachment that was left, and of which only its PersistentVolume tells the volume, is
// detached once that is there.
func TestAnAttachmentIsKnownByALaterPersistentVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		left := made("a", "n0")
		left.Annotations = nil
		w.create(left)
		w.settle()
		w.wantAttachments("a@n0+")
		w.addDisk("a")
		w.settle()
		w.wantAttachments()
	})
}

// What changes while a pod's wishes are read is read again: a claim that is bound just after it
// was read gets its volume attached.
func TestAChangeWhileAPodIsReadIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		bound := func(phase v1.PersistentVolumeClaimPhase) {
			w.change("PersistentVolumeClaim", "ops", "a", func(o metav1.Object) { o.(*v1.PersistentVolumeClaim).Status.Phase = phase })
		}
		bound(v1.ClaimPending)
		w.settle()
		w.stop()
		once := new(sync.Once)
		w.onRead = func(ref volume.ObjectRef) {
			if ref.Kind == "PersistentVolumeClaim" {
				once.Do(func() {
					bound(v1.ClaimBound)
					time.Sleep(time.Minute) // the news of it are worked on meanwhile
				})
			}
		}
		w.start()
		w.addPod("p", "n0", "a")
		w.settle()
		w.wantAttachments("a@n0+")
	})
}
