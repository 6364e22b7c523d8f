package attachdetach_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/attachdetach"
	"github.com/podvol/podvol/volume/objects"
)

// A node gets as many volumes as its CSINode says, and the next one when one has gone.
func TestANodeGetsNoMoreVolumesThanItHasRoomFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a", "b")
		w.create(csiNode("n0", 1))
		w.addPod("p", "n0", "a")
		w.settle()
		w.takeEvents()
		w.addPod("q", "n0", "b")
		w.settle()
		w.wantAttachments("a@n0+")
		w.wantEvent("q: Warning FailedAttachVolume", "node n0 has 1 volumes of driver "+driver)
		w.deletePod("p")
		w.settle()
		w.wantAttachments("b@n0+")
	})
}

// slowCreate has the answers of creations late.
type slowCreate struct{ objects.Client }

func (s slowCreate) Create(ctx context.Context, o metav1.Object) (metav1.Object, error) {
	time.Sleep(time.Second)
	return s.Client.Create(ctx, o)
}

// Attachments that are being made at once take room, too.
func TestRoomIsKeptWhileManyAreMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disks := []string{"a", "b", "c", "d", "e"}
		w := newWorld(t, 1, disks...)
		w.stop()
		w.create(csiNode("n0", 2))
		for _, disk := range disks {
			w.addPod("p-"+disk, "n0", disk)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- attachdetach.New(attachdetach.Config{Objects: slowCreate{w.store}}).Run(ctx) }()
		w.settle()
		if got := w.attachments(); len(got) != 2 {
			t.Errorf("attachments %v", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// refusing has creations refused after a while.
type refusing struct{ objects.Client }

func (r refusing) Create(ctx context.Context, o metav1.Object) (metav1.Object, error) {
	time.Sleep(time.Second)
	if strings.Contains(o.GetAnnotations()[attachdetach.VolumeAnnotation], "^a") {
		return nil, errors.New("a quota is used up")
	}
	return r.Client.Create(ctx, o)
}

// The room of an attachment that could not be made is given to the volume that waits for it.
func TestRoomOfAFailedAttachmentIsGivenOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a", "b")
		w.stop()
		w.create(csiNode("n0", 1))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- attachdetach.New(attachdetach.Config{Objects: refusing{w.store}}).Run(ctx) }()
		synctest.Wait()
		w.addPod("p", "n0", "a")
		synctest.Wait()
		w.addPod("q", "n0", "b") // while the first is being made
		synctest.Wait()
		w.deletePod("p")
		w.letGo("p")
		w.settle()
		w.wantAttachments("b@n0+")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
