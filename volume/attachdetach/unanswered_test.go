package attachdetach_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume/attachdetach"
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

// late has the first creation take effect long after its answer was lost.
type late struct {
	objects.Client
	first sync.Once
}

func (l *late) Create(ctx context.Context, o metav1.Object) (made metav1.Object, err error) {
	err = objects.ErrUncertain
	l.first.Do(func() {
		time.AfterFunc(30*time.Second, func() { _, _ = l.Client.Create(context.WithoutCancel(ctx), o) })
		made = o
	})
	if made != nil {
		return nil, err
	}
	return l.Client.Create(ctx, o)
}

// A VolumeAttachment may be made a while after it was not there: no other node gets the volume
// before that is over.
func TestAnAttachmentThatIsMadeLateCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, "a")
		w.stop()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- attachdetach.New(attachdetach.Config{Objects: &late{Client: w.store}}).Run(ctx) }()
		synctest.Wait()
		w.addPod("p", "n0", "a")
		synctest.Wait()
		w.deletePod("p")
		w.letGo("p")
		w.addPod("q", "n1", "a")
		time.Sleep(20 * time.Second)
		w.wantAttachments()
		w.settle()
		w.wantAttachments("a@n1+")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
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
