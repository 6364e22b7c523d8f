package attachdetach_test

import (
	"errors"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/attachdetach"
	"github.com/podvol/podvol/volume/objects"
)

// addSame makes another PersistentVolume of a disk, and its claim.
func (w *world) addSame(name, handle string) {
	w.addDisk(name)
	w.deletePV(name)
	w.addPV(name, handle)
}

// A VolumeAttachment of another controller, whose PersistentVolume is gone, is known by what its
// node uses: the same disk, by another PersistentVolume, is attached to no other node meanwhile.
func TestWhatANodeUsesTellsItsAttachment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		w.stop()
		w.disown()
		w.deletePV("a")
		w.addSame("again", "a")
		w.addPod("q", "n1", "again")
		w.start()
		w.settle()
		w.wantAttachments("a@n0+")
		w.wantListed("n0", uniqueName("a"))
		for _, call := range w.client.Calls() {
			if call.Ref.Kind == "Node" && call.Verb == "update status" {
				t.Errorf("%s was written: %v", call.Ref, call.Object.(*v1.Node).Status.VolumesAttached)
			}
		}
		w.wantEvent("q: Warning FailedAttachVolume", "Multi-Attach error", "node n0 has it")
		w.deletePod("p")
		w.settle()
		w.wantAttachments("again@n1+")
	})
}

// It is known by its name, too, if its node says nothing: it is detached before another node
// gets the disk.
func TestTheNameOfAnAttachmentTellsItsVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		w.stop()
		w.deletePod("p")
		w.settle()
		w.agents["n0"].setOff(true)
		w.list("n0", nil, nil)
		w.disown()
		w.deletePV("a")
		w.addSame("again", "a")
		w.addPod("q", "n1", "again")
		w.start()
		w.settle()
		w.wantAttachments("again@n1+")
	})
}

// What an agent has attached by itself is detached once its Node is gone, and its
// PersistentVolume, too.
func TestWhatAnAgentAttachedDoesNotOutliveItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		w.agents["n0"].setOff(true)
		w.changeNode("n0", func(n *v1.Node) { n.Annotations = nil })
		pv, err := objects.Get[*v1.PersistentVolume](t.Context(), w.store, pvRef("a"))
		if err != nil {
			t.Fatal(err)
		}
		spec := volume.NewSpecFromPersistentVolume(pv, false)
		if _, err := (attachdetach.ByObject{Objects: w.store}).AttachSpec(t.Context(), spec, types.NodeName("n0")); err != nil {
			t.Fatal(err)
		}
		w.settle()
		w.wantAttachments("a@n0+")
		w.stop()
		w.deletePV("a")
		if err := w.store.Delete(t.Context(), nodeRef("n0"), noPreconditions); err != nil {
			t.Fatal(err)
		}
		w.start()
		w.settle()
		w.wantAttachments()
	})
}

// Nor does what another controller has left, of which nothing tells the volume any more.
func TestWhatIsLeftOfAnUnknownVolumeDoesNotOutliveItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		w.addPod("p", "n0", "a")
		w.create(foreignAttachment("by-hand", "nothing")) // to a node that never was
		w.settle()
		w.stop()
		w.powerOff("n0")
		w.disown()
		w.deletePV("a")
		w.list("n0", nil, nil)
		w.start()
		w.settle()
		w.wantAttachments("a@n0+", "nothing@elsewhere+")
		if err := w.store.Delete(t.Context(), nodeRef("n0"), noPreconditions); err != nil {
			t.Fatal(err)
		}
		w.settle()
		w.wantAttachments("nothing@elsewhere+")
	})
}

// A VolumeAttachment of a PersistentVolume that had the same name is not the new one's: the new
// volume waits, its node is not told of it, and the pod is told what to do.
func TestAnAttachmentOfTheOldPersistentVolumeIsNotTheNewOnes(t *testing.T) {
	for name, tc := range map[string]struct {
		used []v1.UniqueVolumeName
		word string
		end  func(w *world)
	}{
		"known by its node": {[]v1.UniqueVolumeName{uniqueName("a")}, "was made for kubernetes.io/csi/disk.example.com^a", func(w *world) {
			w.list("n0", []v1.UniqueVolumeName{uniqueName("a")}, nil)
		}},
		"unknown": {nil, "has made VolumeAttachment csi-", func(w *world) {
			if err := w.store.Delete(w.t.Context(), attachmentRef("a", "n0"), noPreconditions); err != nil {
				w.t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, "a")
				w.addPod("p", "n0", "a")
				w.settle()
				w.agents["n0"].setOff(true)
				w.deletePod("p")
				w.letGo("p")
				w.backend.unmount("a", "n0")
				w.stop()
				w.list("n0", tc.used, tc.used)
				w.disown()
				w.deletePV("a")
				w.addPV("a", "other")
				w.addPod("q", "n0", "a")
				w.takeEvents()
				w.start()
				w.settle()
				w.wantAttachments("a@n0+")
				w.wantListed("n0", tc.used...)
				w.wantEvent("q: Warning FailedAttachVolume", tc.word)
				tc.end(w)
				w.settle()
				w.wantListed("n0", uniqueName("other"))
				if _, err := w.store.Get(t.Context(), attachmentRef("other", "n0")); err != nil {
					t.Error(err)
				}
				w.wantEvent("q: Normal SuccessfulAttachVolume")
			})
		})
	}
}

// A VolumeAttachment that somebody has made for the pod's own node is not what the node looks
// for: the pod is told who must delete it.
func TestAForeignAttachmentToThePodsNodeIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		mine := foreignAttachment("mine", "a")
		mine.Spec.NodeName = "n0"
		w.create(mine)
		w.settle()
		w.addPod("p", "n0", "a")
		w.settle()
		w.wantAttachments("a@n0+")
		w.wantListed("n0")
		w.wantEvent("p: Warning FailedAttachVolume", "VolumeAttachment mine", "must delete it")
		if err := w.store.Delete(t.Context(), volume.NewObjectRef("VolumeAttachment", "", "mine"), noPreconditions); err != nil {
			t.Fatal(err)
		}
		w.settle()
		w.wantAttachments("a@n0+")
		w.wantListed("n0", uniqueName("a"))
		w.wantEvent("p: Normal SuccessfulAttachVolume")
	})
}

// A foreign VolumeAttachment beside the controller's own hides that from nobody.
func TestAForeignAttachmentBesideTheOwnChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		mine := foreignAttachment("mine", "a") // sorts after the own one
		mine.Spec.NodeName = "n0"
		w.create(mine)
		w.settle()
		w.wantListed("n0", uniqueName("a"))
		w.deletePod("p")
		w.settle()
		w.wantListed("n0")
		w.wantAttachments("a@n0+")
		if _, err := w.store.Get(t.Context(), attachmentRef("a", "n0")); err == nil {
			t.Error("the own one is left")
		}
	})
}

// A pod that comes back to the node that cannot detach its volume is told why it waits.
func TestAFailedDetachIsToldOnItsOwnNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		w.setDetaching("a", errors.New("the cloud is down"))
		w.deletePod("p")
		w.settle()
		w.addPod("q", "n0", "a")
		w.settle()
		w.wantEvent("q: Warning FailedAttachVolume", "detaching it from there fails", "the cloud is down")
		w.setDetaching("a", nil)
		w.settle()
		w.wantListed("n0", uniqueName("a"))
	})
}
