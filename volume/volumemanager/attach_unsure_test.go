package volumemanager_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// mountedThen mounts the disks of two pods, ends the manager, and starts the next one, whose
// plugin answers so to the question whether the disks are attached.
func mountedThen(t *testing.T, w *world, d *disk, answer func(context.Context) (bool, error)) (_ *volumemanager.Manager, stop func()) {
	t.Helper()
	manager, stop := w.start()
	n := &node{manager: manager}
	one, two := diskPod("one", "a"), diskPod("two", "b")
	n.attach("a", "b")
	declare(t, manager, one, two)
	n.report()
	synctest.Wait()
	stop()
	d.log()
	d.canAttach = answer
	manager, stop = w.start()
	if err := manager.WaitForRecovery(t.Context()); err != nil {
		t.Fatal(err)
	}
	return manager, stop
}

// While the API cannot say what is attached, all that is mounted counts as in use. It is
// torn down all the same, and the start does not wait for each volume.
func TestInUseWhileNothingSaysWhatIsAttached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.withAttachableDisks()
		began := time.Now()
		manager, stop := mountedThen(t, w, d, func(ctx context.Context) (bool, error) {
			<-ctx.Done() // an API server that does not answer
			return false, context.Cause(ctx)
		})
		defer stop()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the start took %s", took)
		}
		assertInUse(t, manager, "a", "b")
		manager.SetVolumesAttached(nil)
		if row := rowOf(t, manager, "one"); row.Attachment != nil || row.State != volumemanager.StateMounted {
			t.Errorf("nothing is known of the attachment: %+v", row)
		}
		mustTearDown(t, manager, diskPod("one", "a"))
		assertInUse(t, manager, "b")
		mustTearDown(t, manager, diskPod("two", "b"))
		assertInUse(t, manager)
		w.assertNoDevices()
	})
}

// The first answer settles it.
func TestTheAnswerSettlesWhatIsAttached(t *testing.T) {
	for _, attaches := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			d := w.withAttachableDisks()
			manager, stop := mountedThen(t, w, d, func(context.Context) (bool, error) { return false, errors.New("not synced") })
			defer stop()
			d.canAttach = func(context.Context) (bool, error) { return attaches, nil }
			manager.SetVolumesAttached(nil)
			one := diskPod("one", "a")
			mustSetUp(t, manager, one)
			want := []string{"b"} // of which nothing is known yet
			if attaches {
				want = []string{"a", "b"}
			}
			assertInUse(t, manager, want...)
			if row := rowOf(t, manager, "one"); (row.Attachment != nil) != attaches {
				t.Errorf("attaches %v: %+v", attaches, row)
			}
			mustTearDown(t, manager, one, diskPod("two", "b"))
			w.assertNoDevices()
		})
	}
}

// A pod is not set up before it is known whether its volume is attached.
func TestNothingIsMountedUnattachedInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.withAttachableDisks()
		down := errors.New("the API does not answer")
		d.canAttach = func(context.Context) (bool, error) { return false, down }
		manager, stop := w.start()
		defer stop()
		pod := diskPod("web", "a")
		declare(t, manager, pod)
		if row := rowOf(t, manager, "web"); !errors.Is(row.Err, down) || row.State != volumemanager.StateFailed || len(d.log()) > 0 {
			t.Errorf("%+v", row)
		}
		assertInUse(t, manager, "a")
		mustTearDown(t, manager, pod)
		w.assertNoDevices()
	})
}

// What a plugin has mounted that is not there any more stays in use.
func TestInUseWithoutThePlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.withAttachableDisks()
		manager, stop := w.start()
		n := &node{manager: manager}
		n.attach("a")
		declare(t, manager, diskPod("one", "a"))
		n.report()
		synctest.Wait()
		stop()
		d.log()
		w.plugins = besides()
		manager, stop = w.start()
		defer stop()
		if err := manager.WaitForRecovery(t.Context()); err != nil {
			t.Fatal(err)
		}
		manager.SetVolumesAttached(n.attached)
		assertInUse(t, manager, "a")
	})
}

// checkedDisk can say why it is not attached.
type checkedDisk struct {
	attachableDisk
	why *atomic.Pointer[error]
}

func (d checkedDisk) CheckAttachment(ctx context.Context, s *volume.Spec) error {
	err := d.calls.Do(ctx, diskCall{Op: "CheckAttachment", Whose: pdName(s)}, func() error { return nil })
	if why := d.why.Load(); why != nil {
		err = errors.Join(err, *why)
	}
	return err
}

// A node that has no room for a volume has failed, and the agent learns it at once, to reject the
// pod. It goes on once there is room.
func TestNodeWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, why := newWorld(t), new(atomic.Pointer[error])
		d := &disk{t: t}
		w.plugins = besides(checkedDisk{attachableDisk{d}, why})
		manager, stop := w.start()
		defer stop()
		n := &node{manager: manager}
		pod := diskPod("web", "a")
		declare(t, manager, pod)
		waited := make(chan error, 1)
		go func() { waited <- manager.WaitForMounted(t.Context(), pod.UID) }()
		full := error(&volume.Failure{Cause: volume.ErrAttachLimitExceeded, What: "16 of 16 slots are taken"})
		why.Store(&full)
		began := time.Now()
		n.report()
		var failed *volumemanager.PodError
		if err := <-waited; !errors.Is(err, volume.ErrAttachLimitExceeded) || !errors.As(err, &failed) || strings.Count(err.Error(), "16 of 16") != 1 {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if took := time.Since(began); took > time.Second { // a pause
			t.Errorf("told after %s", took)
		}
		if err := manager.WaitForMounted(t.Context(), pod.UID); !errors.Is(err, volume.ErrAttachLimitExceeded) {
			t.Errorf("asked again: %v", err)
		}
		if _, err := manager.SetUpPod(t.Context(), pod); !errors.Is(err, volume.ErrAttachLimitExceeded) {
			t.Errorf("set up: %v", err)
		}
		row := rowOf(t, manager, "web")
		if text, err := json.Marshal(row); err != nil || row.State != volumemanager.StateFailed || row.Attachment == nil || !strings.Contains(string(text), `"cause":"AttachLimitExceeded"`) {
			t.Errorf("%s, %v", text, err)
		}
		time.Sleep(time.Hour)
		if n := len(d.log()); n < 20 || n > 60 {
			t.Errorf("the plugin was asked %d times in an hour", n)
		}
		why.Store(nil) // and it is not attached yet
		time.Sleep(10 * time.Minute)
		if row := rowOf(t, manager, "web"); row.State != volumemanager.StatePending || row.Err != nil {
			t.Errorf("%+v", row)
		}
		began = time.Now()
		n.attach("a")
		if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil || time.Since(began) > 0 {
			t.Errorf("mounted after %s: %v", time.Since(began), err)
		}
		mustTearDown(t, manager, pod)
		w.assertNoDevices()
	})
}

// The report that a volume is attached may come while its plugin is asked why it is not.
func TestAttachedWhileThePluginIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := &disk{t: t}
		w.plugins = besides(checkedDisk{attachableDisk{d}, new(atomic.Pointer[error])})
		manager, stop := w.start()
		defer stop()
		n := &node{manager: manager}
		pod := diskPod("web", "a")
		declare(t, manager, pod)
		var attached time.Time
		d.calls.Inject(fault.Fault[diskCall]{Match: func(c diskCall) bool { return c.Op == "CheckAttachment" }, Nth: 1, Hook: func() { n.attach("a"); attached = time.Now() }})
		n.report()
		if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil || time.Since(attached) > 0 {
			t.Errorf("mounted %s after it was attached, %v", time.Since(attached), err)
		}
		mustTearDown(t, manager, pod)
		w.assertNoDevices()
	})
}

// While a volume waits to be attached, its plugin is asked why, at growing pauses, and the pod
// is told. The report that it is attached is enough to go on at once.
func TestWhyAVolumeIsNotAttached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, why := newWorld(t), new(atomic.Pointer[error])
		d := &disk{t: t}
		w.plugins = besides(checkedDisk{attachableDisk{d}, why})
		manager, stop := w.start()
		defer stop()
		n := &node{manager: manager}
		pod := diskPod("web", "a")
		declare(t, manager, pod)
		time.Sleep(time.Hour)
		if calls := d.log(); len(calls) > 0 {
			t.Errorf("before the volume is reported in use: %v", calls)
		}
		n.report()
		synctest.Wait()
		if events := w.events.all(); len(events) > 0 {
			t.Errorf("nothing has failed: %v", events)
		}
		full := errors.New("no slot is free")
		why.Store(&full)
		time.Sleep(time.Hour)
		if n := len(d.log()); n < 20 || n > 45 {
			t.Errorf("the plugin was asked %d times in an hour", n)
		}
		if events := w.events.all(); len(events) == 0 || !strings.Contains(events[0], "no slot is free") {
			t.Errorf("events %v", events)
		}
		row := rowOf(t, manager, "web")
		if row.State != volumemanager.StatePending || !errors.Is(row.Err, full) || row.Attachment == nil || !errors.Is(row.Attachment, full) {
			t.Errorf("%+v", row)
		}
		if text, err := json.Marshal(row); err != nil || !strings.Contains(string(text), "no slot is free") {
			t.Errorf("%s, %v", text, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := manager.WaitForMounted(ctx, pod.UID); !errors.Is(err, full) || strings.Count(err.Error(), "no slot is free") != 1 {
			t.Errorf("a caller that waited is not told why, or twice: %v", err)
		}
		began := time.Now()
		n.attach("a")
		if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil || time.Since(began) > 0 {
			t.Errorf("mounted after %s: %v", time.Since(began), err)
		}
		mustTearDown(t, manager, pod)
		d.log()
		time.Sleep(time.Hour)
		if calls := d.log(); len(calls) > 0 {
			t.Errorf("after the end: %v", calls)
		}
		w.assertNoDevices()
	})
}
