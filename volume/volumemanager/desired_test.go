package volumemanager_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

func isMount(c fakemount.Call) bool   { return c.Op == mount.OpMount }
func isUnmount(c fakemount.Call) bool { return c.Op == mount.OpUnmount }

func TestWishesBeforeRunAreKept(t *testing.T) {
	w := newWorld(t)
	manager, err := volumemanager.New(w.config())
	if err != nil {
		t.Fatal(err)
	}
	if err := manager.PutPod(newPod("web", emptyDirVolume("v", ""))); err != nil {
		t.Fatal(err)
	}
	if err := manager.PutPod(newPod("gone", emptyDirVolume("v", ""))); err != nil {
		t.Fatal(err)
	}
	manager.DeletePod("uid-gone")
	w.untouched()
	w.run(manager)
	if err := manager.WaitForMounted(t.Context(), "uid-web"); err != nil {
		t.Fatal(err)
	}
	if err := manager.WaitForUnmounted(t.Context(), "uid-gone"); err != nil {
		t.Fatal(err)
	}
	if rows := manager.Explain(); len(rows) != 1 || !rows[0].Wanted || rows[0].Kept || rows[0].State != volumemanager.StateMounted {
		t.Errorf("Explain = %+v", rows)
	}
}

func TestCallsAfterRun(t *testing.T) {
	w := newWorld(t)
	manager, stop := w.start()
	stop()
	if err := manager.PutPod(newPod("web")); !errors.Is(err, volumemanager.ErrStopped) {
		t.Errorf("PutPod: %v", err)
	}
	manager.DeletePod("uid-web")
	manager.PodsComplete()
	if err := manager.WaitForMounted(t.Context(), "uid-web"); !errors.Is(err, volumemanager.ErrStopped) {
		t.Errorf("WaitForMounted: %v", err)
	}
	if err := manager.WaitForUnmounted(t.Context(), "uid-web"); !errors.Is(err, volumemanager.ErrStopped) {
		t.Errorf("WaitForUnmounted: %v", err)
	}
}

func TestWaitForUnknownPod(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	if err := manager.WaitForMounted(t.Context(), "nobody"); !errors.Is(err, volumemanager.ErrUnknownPod) {
		t.Errorf("WaitForMounted: %v", err)
	}
	if err := manager.WaitForUnmounted(t.Context(), "nobody"); err != nil {
		t.Errorf("WaitForUnmounted: %v", err)
	}
	manager.DeletePod("nobody")
}

func TestPutPodRefusesBadInput(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	var invalid *volume.InvalidSpecError
	if err := manager.PutPod(newPod("web", emptyDirVolume("good", ""), nfsVolume("bad", ""))); !errors.As(err, &invalid) {
		t.Errorf("err = %v", err)
	}
	if rows := manager.Explain(); len(rows) != 0 {
		t.Errorf("rows = %+v", rows)
	}
	w.untouched()
}

// Scenario 14: the agent restarts with pods deleted, added and running
// meanwhile.
func TestRestartWithChangedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		role := &containers{gone: map[types.UID]bool{"uid-deleted": true, "uid-running": true}}
		w.containers = role
		manager, stop := w.start()
		for _, name := range []string{"running", "deleted"} {
			if _, err := manager.SetUpPod(t.Context(), newPod(name, nfsVolume("v", "10.0.0.1"))); err != nil {
				t.Fatal(err)
			}
		}
		stop()
		w.fake.ResetCalls()
		manager, stop = w.start()
		defer stop()
		if err := manager.PutPod(newPod("running", nfsVolume("v", "10.0.0.1"))); err != nil {
			t.Fatal(err)
		}
		if err := manager.PutPod(newPod("added", nfsVolume("v", "10.0.0.1"))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if calls := w.fake.Calls(); len(calls) != 1 || !strings.Contains(calls[0].Target, "uid-added") {
			t.Errorf("before the pods are complete: %v", calls)
		}
		manager.PodsComplete()
		if err := manager.WaitForUnmounted(t.Context(), "uid-deleted"); err != nil {
			t.Error(err)
		}
		for _, uid := range []types.UID{"uid-running", "uid-added"} {
			if err := manager.WaitForMounted(t.Context(), uid); err != nil {
				t.Error(err)
			}
		}
		if calls := w.fake.Calls(); len(calls) != 2 || calls[1].Op != mount.OpUnmount || !strings.Contains(calls[1].Target, "uid-deleted") {
			t.Errorf("after that: %v", calls)
		}
	})
}

func TestPodDeclaredAgainDuringItsTearDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		pod := newPod("web", nfsVolume("v", "10.0.0.1"))
		if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		w.fake.Inject(fakemount.Fault{Match: isUnmount, Release: release, Nth: 1})
		tornDown := make(chan error, 1)
		go func() { tornDown <- manager.TearDownPod(context.Background(), pod.UID) }()
		synctest.Wait()
		if err := manager.PutPod(pod); err != nil {
			t.Fatal(err)
		}
		if err := <-tornDown; !errors.Is(err, volumemanager.ErrSuperseded) {
			t.Errorf("TearDownPod: %v", err)
		}
		close(release)
		if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil {
			t.Error(err)
		}
		if entries, err := w.fake.Table().BySource("10.0.0.1:/nfs"); err != nil || len(entries) != 1 {
			t.Errorf("mounted: %v, %v", entries, err)
		}
		if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
			t.Error(err)
		}
		w.assertClean()
	})
}

func TestVolumesOfAPodCanBeAddedAndReplacedInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		if _, err := manager.SetUpPod(t.Context(), newPod("web", emptyDirVolume("a", ""))); err != nil {
			t.Fatal(err)
		}
		if err := manager.PutPod(newPod("web", emptyDirVolume("a", ""), nfsVolume("b", "10.0.0.1"))); err != nil {
			t.Fatal(err)
		}
		if err := manager.WaitForMounted(t.Context(), "uid-web"); err != nil {
			t.Fatal(err)
		}
		// What is not in the pod any more stays while its containers may run.
		if err := manager.PutPod(newPod("web", emptyDirVolume("a", ""))); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if rows := manager.Explain(); len(rows) != 2 || rows[1].Wanted || rows[1].State != volumemanager.StateMounted {
			t.Errorf("rows = %+v", rows)
		}
		if err := manager.TearDownPod(t.Context(), "uid-web"); err != nil {
			t.Fatal(err)
		}
		w.assertClean()
	})
}
