package attachdetach_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume/attachdetach"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// Two controllers that run by mistake, one of them with a late cache, undo each other's lists ever
// more slowly. Once one has ended, the other's list counts.
func TestTwoControllersUndoEachOtherWithAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		release := w.client.Hold("VolumeAttachment")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- attachdetach.New(attachdetach.Config{Objects: w.store}).Run(ctx) }()
		synctest.Wait()
		first := w.client.Count()
		tooMany := make(chan struct{}) // without a pause time would not pass
		w.client.Inject(fault.Fault[objectstest.Call]{Match: onCall("update status", "Node"), Nth: 100, Hook: func() { close(tooMany) }, Err: objectstest.ErrCrashed})
		w.client.Inject(fault.Fault[objectstest.Call]{Match: func(objectstest.Call) bool { return isClosed(tooMany) }, Err: objectstest.ErrCrashed})
		w.addPod("p", "n0", "a")
		w.settle()
		if calls := w.client.Count() - first; isClosed(tooMany) || calls > 40 {
			t.Errorf("%d calls in a quarter of an hour", calls)
		}
		w.wantAttachments("a@n0+")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		release()
		w.settle()
		if listed := w.node("n0").Status.VolumesAttached; len(listed) != 1 {
			t.Errorf("the node lists %v", listed)
		}
	})
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A list that somebody has changed is written again, also that of a node that was made anew.
func TestAListIsWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		undo := func() { w.changeNode("n0", func(n *v1.Node) { n.Status.VolumesAttached = nil }) }
		undo()
		synctest.Wait()
		if listed := w.node("n0").Status.VolumesAttached; len(listed) > 0 {
			t.Errorf("it is written again without a pause: %v", listed)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if listed := w.node("n0").Status.VolumesAttached; len(listed) != 1 {
			t.Errorf("the node lists %v after a second", listed)
		}
		if err := w.store.Delete(t.Context(), nodeRef("n0"), noPreconditions); err != nil {
			t.Fatal(err)
		}
		w.addNode("n0")
		synctest.Wait()
		w.agents["n0"].queue.Enqueue("n0")
		time.Sleep(time.Minute)
		if listed := w.node("n0").Status.VolumesAttached; len(listed) != 1 {
			t.Errorf("the new node lists %v", listed)
		}
		w.backend.broken = nil // its disk may go under the mount once its Node is deleted
	})
}
