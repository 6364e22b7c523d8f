package volumemanager_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/volumemanager"
)

// containers is the role that knows which pods still run.
type containers struct {
	mu    sync.Mutex
	gone  map[types.UID]bool
	err   error
	asked int
	f     func(types.UID)
}

func (c *containers) ContainersGone(_ context.Context, podUID types.UID) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return c.gone[podUID], c.err
}

func (c *containers) WatchContainers(f func(types.UID)) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.f = f
	return func() {}
}

func (c *containers) end(podUID types.UID) {
	c.mu.Lock()
	c.gone[podUID] = true
	f := c.f
	c.mu.Unlock()
	f(podUID)
}

func TestVolumesAreKeptUntilTheContainersAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		role := &containers{gone: map[types.UID]bool{}}
		w.containers = role
		manager, stop := w.start()
		defer stop()
		if _, err := manager.SetUpPod(t.Context(), newPod("web", nfsVolume("a", "10.0.0.1"), emptyDirVolume("b", ""))); err != nil {
			t.Fatal(err)
		}
		manager.DeletePod("uid-web")
		time.Sleep(time.Hour)
		synctest.Wait()
		if rows := manager.Explain(); len(rows) != 2 || rows[0].State != volumemanager.StateMounted || rows[0].Wanted {
			t.Errorf("with running containers: %+v", rows)
		}
		if role.asked != 2 {
			t.Errorf("the role was asked %d times in an hour, want once a volume", role.asked)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := manager.WaitForUnmounted(short, "uid-web"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "containers to be gone") {
			t.Errorf("err = %v", err)
		}
		role.end("uid-web")
		if err := manager.WaitForUnmounted(t.Context(), "uid-web"); err != nil {
			t.Error(err)
		}
		w.assertClean()
	})
}

func TestFailingContainersRoleIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		role := &containers{gone: map[types.UID]bool{}, err: errors.New("runtime is restarting")}
		w.containers = role
		manager, stop := w.start()
		defer stop()
		if _, err := manager.SetUpPod(t.Context(), newPod("web", nfsVolume("a", "10.0.0.1"))); err != nil {
			t.Fatal(err)
		}
		manager.DeletePod("uid-web")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if entries, err := w.fake.Table().BySource("10.0.0.1:/nfs"); err != nil || len(entries) != 1 {
			t.Errorf("a failed look-up counts as gone: %v, %v", entries, err)
		}
		role.mu.Lock()
		role.err, role.gone["uid-web"] = nil, true
		role.mu.Unlock()
		if err := manager.WaitForUnmounted(t.Context(), "uid-web"); err != nil {
			t.Error(err)
		}
	})
}

func TestNothingIsTornDownWithoutAPromise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		if _, err := manager.SetUpPod(t.Context(), newPod("web", nfsVolume("a", "10.0.0.1"))); err != nil {
			t.Fatal(err)
		}
		manager.DeletePod("uid-web")
		manager.PodsComplete()
		time.Sleep(time.Hour)
		synctest.Wait()
		if rows := manager.Explain(); len(rows) != 1 || rows[0].State != volumemanager.StateMounted {
			t.Errorf("rows = %+v", rows)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := manager.WaitForUnmounted(short, "uid-web"); err == nil || !strings.Contains(err.Error(), "call TearDownPod") {
			t.Errorf("err = %v, want what to do", err)
		}
		if err := manager.TearDownPod(t.Context(), "uid-web"); err != nil {
			t.Error(err)
		}
		w.assertClean()
	})
}

// A pod of an earlier run that nobody has announced is kept until all pods are
// complete, whatever the role says of it before.
func TestNothingIsTornDownBeforePodsAreComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.leave(newPod("web", nfsVolume("a", "10.0.0.1")))
		role := &containers{gone: map[types.UID]bool{}}
		w.containers = role
		manager, stop := w.start()
		defer stop()
		role.end("uid-web")
		time.Sleep(time.Hour)
		synctest.Wait()
		if rows := manager.Explain(); len(rows) != 1 || rows[0].State != volumemanager.StateMounted {
			t.Errorf("before all pods are complete: %+v", rows)
		}
		manager.PodsComplete()
		if err := manager.WaitForUnmounted(t.Context(), "uid-web"); err != nil {
			t.Error(err)
		}
		w.assertClean()
	})
}

// Whoever knows all pods need not wait for the records to be read: what is left of
// others goes all the same, and so does what was kept and is deleted.
func TestPodsMayBeCompleteBeforeTheRecordsAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.leave(newPod("gone", nfsVolume("a", "10.0.0.1")))
		w.leave(newPod("deleted", nfsVolume("b", "10.0.0.2")))
		w.leave(newPod("kept", nfsVolume("c", "10.0.0.3")))
		w.containers = &containers{gone: map[types.UID]bool{"uid-gone": true, "uid-deleted": true, "uid-kept": true}}
		manager, err := volumemanager.New(w.config())
		if err != nil {
			t.Fatal(err)
		}
		manager.PodsComplete("uid-kept", "uid-deleted")
		manager.DeletePod("uid-deleted")
		defer w.run(manager)()
		synctest.Wait()
		if rows := manager.Explain(); len(rows) != 1 || rows[0].PodUID != "uid-kept" || !rows[0].Kept || rows[0].State != volumemanager.StateMounted {
			t.Errorf("rows = %+v, want the kept pod's alone", rows)
		}
	})
}
