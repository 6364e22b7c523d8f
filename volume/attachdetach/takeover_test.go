package attachdetach_test

import (
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
