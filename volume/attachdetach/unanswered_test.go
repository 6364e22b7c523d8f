package attachdetach_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

func onCall(verb, kind string) func(objectstest.Call) bool {
	return func(c objectstest.Call) bool { return c.Verb == verb && c.Ref.Kind == kind }
}

// A VolumeAttachment of which it is not known whether it was made counts as made.
func TestAnAttachmentThatMayHaveBeenMadeCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, "a")
		w.client.Hold("VolumeAttachment") // no watch tells of it, either
		lost := w.client.Inject(
			fault.Fault[objectstest.Call]{Match: onCall("create", "VolumeAttachment"), Nth: 1, After: true, Err: errors.Join(objects.ErrUncertain, errLost)},
			fault.Fault[objectstest.Call]{Match: onCall("get", "VolumeAttachment"), Err: errLost})
		w.addPod("p", "n0", "a")
		synctest.Wait()
		w.deletePod("p")
		w.letGo("p")
		w.addPod("q", "n1", "a")
		time.Sleep(time.Minute)
		w.wantAttachments("a@n0+")
		lost()
		w.settle()
		w.stop()
		w.start()
		w.settle()
		w.wantAttachments("a@n1+")
	})
}

// While a node is being told that a volume is attached, the volume is not let go: the node may
// mount it as soon as it is told.
func TestAVolumeIsKeptWhileItsNodeIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		w.agents["n0"].setOff(true)
		told := w.client.Hold("Node") // no watch tells what the answer would
		answer := make(chan struct{})
		w.client.Inject(fault.Fault[objectstest.Call]{Match: onCall("update status", "Node"), Nth: 1, After: true, Release: answer})
		w.addPod("p", "n0", "a")
		time.Sleep(time.Minute)
		w.deletePod("p")
		w.letGo("p")
		synctest.Wait()
		release := w.client.Hold("Pod")
		w.addPod("q", "n0", "a")
		w.agents["n0"].setOff(false)
		time.Sleep(time.Minute)
		if got := w.backend.mountsOf("n0"); !slices.Equal(got, []string{"a"}) {
			t.Errorf("mounted: %v", got)
		}
		w.wantAttachments("a@n0+")
		close(answer)
		time.Sleep(time.Minute)
		told()
		release()
		w.settle()
		w.wantAttachments("a@n0+")
		w.deletePod("q")
		w.settle()
		w.wantAttachments()
	})
}
