package volumemanager_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/volume/volumemanager"
)

func TestCallsWithAnEndedContextChangeNothing(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := newPod("web", emptyDirVolume("scratch", ""))
	if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		if _, err := manager.SetUpPod(ended, pod); !errors.Is(err, context.Canceled) {
			t.Errorf("SetUpPod: %v", err)
		}
		if _, err := manager.SetUpPod(ended, newPod("other", emptyDirVolume("scratch", ""))); !errors.Is(err, context.Canceled) {
			t.Errorf("SetUpPod of another pod: %v", err)
		}
		if err := manager.WaitForRecovery(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("WaitForRecovery: %v", err)
		}
	}
	if got := manager.Explain(); len(got) != 1 || got[0].State != volumemanager.StateMounted {
		t.Errorf("Explain = %+v, want the one mounted volume", got)
	}
	if got := w.events.all(); len(got) != 0 {
		t.Errorf("events of waits that ended: %q", got)
	}
}

func TestWaitAfterRun(t *testing.T) {
	w := newWorld(t)
	manager, stop := w.start()
	stop()
	for range 50 {
		if err := manager.WaitForRecovery(t.Context()); !errors.Is(err, volumemanager.ErrStopped) {
			t.Fatalf("err = %v", err)
		}
	}
}

// Two set-ups of one volume from different sources: at most one of them wins,
// and the other learns why.
func TestRivalSetUps(t *testing.T) {
	for range 20 {
		w := newWorld(t)
		manager, stop := w.start()
		hostPath := v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: t.TempDir()}}}
		rivals := []*v1.Pod{newPod("web", emptyDirVolume("v", "")), newPod("web", hostPath)}
		var all sync.WaitGroup
		errs := make([]error, len(rivals))
		for i, pod := range rivals {
			all.Go(func() { _, errs[i] = manager.SetUpPod(t.Context(), pod) })
		}
		all.Wait()
		refused := 0
		for _, err := range errs {
			if errors.Is(err, volumemanager.ErrReplaced) || errors.Is(err, volumemanager.ErrSuperseded) {
				refused++
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if refused == 0 {
			t.Fatal("both sources are mounted")
		}
		if n := len(w.records()); n != 1 {
			t.Fatalf("%d records", n)
		}
		stop()
	}
}

// A set-up that is refused and did nothing leaves the record as it was.
func TestRefusedRefreshKeepsTheRecord(t *testing.T) {
	w := newWorld(t)
	claim, pv := boundPair("nfs-211", "nfs211")
	w.add(claim, pv)
	manager, stop := w.start()
	if _, err := manager.SetUpPod(t.Context(), newPod("web", claimVolume("d", "nfs-211", false))); err != nil {
		t.Fatal(err)
	}
	if _, err := manager.SetUpPod(t.Context(), newPod("web", claimVolume("d", "nfs-211", true))); err == nil {
		t.Fatal("a writable mount passed for a read-only one")
	}
	stop()
	manager, _ = w.start()
	if got := manager.Explain(); len(got) != 1 || got[0].State != volumemanager.StateMounted || got[0].Err != nil {
		t.Errorf("after a restart: %+v", got)
	}
	if err := manager.TearDownPod(t.Context(), "uid-web"); err != nil {
		t.Fatal(err)
	}
	w.assertClean()
}

func TestRowsOfSharedAndFailedClaims(t *testing.T) {
	w := newWorld(t)
	claim, pv := boundPair("nfs-211", "nfs211")
	w.add(claim, pv)
	manager, stop := w.start()
	pod := newPod("web", claimVolume("one", "nfs-211", false), claimVolume("two", "nfs-211", false), claimVolume("lost", "missing", false))
	if _, err := manager.SetUpPod(t.Context(), pod); err == nil {
		t.Fatal("a missing claim was found")
	}
	states := func(rows []volumemanager.VolumeStatus) map[string]string {
		states := map[string]string{}
		for _, r := range rows {
			states[r.Volume] = string(r.State)
		}
		return states
	}
	if diff := cmpDiff(map[string]string{"one": "mounted", "two": "mounted", "lost": "failed"}, states(manager.Explain())); diff != "" {
		t.Errorf("Explain:\n%s", diff)
	}
	stop()
	rows, err := volumemanager.Inspect(w.root, w.fake.Table())
	if diff := cmpDiff(map[string]string{"one": "mounted", "two": "mounted"}, states(rows)); diff != "" || err != nil {
		t.Errorf("Inspect: %v\n%s", err, diff)
	}
	manager, _ = w.start()
	if diff := cmpDiff(map[string]string{"one": "mounted", "two": "mounted"}, states(manager.Explain())); diff != "" {
		t.Errorf("after a restart:\n%s", diff)
	}
	if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	if rows := manager.Explain(); len(rows) != 0 {
		t.Errorf("after the tear-down: %+v", rows)
	}
	w.assertClean()
}

// abandoning is a host whose files are on a server that does not answer.
type abandoning struct{}

func (abandoning) Stat(context.Context, string) (fs.FileInfo, error) {
	return nil, &blockingcall.AbandonedError{Err: context.DeadlineExceeded}
}
func (abandoning) MakeDir(context.Context, string, fs.FileMode) error  { return os.ErrInvalid }
func (abandoning) MakeFile(context.Context, string, fs.FileMode) error { return os.ErrInvalid }

// What a plugin gave up is not what the manager gave up: the operation ended.
func TestAbandonedCallOfAPluginIsAFailure(t *testing.T) {
	w := newWorld(t)
	w.hostFiles = abandoning{}
	manager, _ := w.start()
	directory := v1.HostPathDirectory
	pod := newPod("web", v1.Volume{Name: "h", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/data", Type: &directory}}})
	volumes, err := manager.SetUpPod(t.Context(), pod)
	if err == nil || volumes.Volumes[0].State != volumemanager.StateFailed || manager.Explain()[0].State != volumemanager.StateFailed {
		t.Errorf("err %v, rows %+v", err, volumes.Volumes)
	}
}

// A deadline must not hide what the plugin has to say about it.
func TestTimeoutKeepsTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.setUpTimeout = 30 * time.Second
		manager, stop := w.start()
		defer stop()
		w.fake.Inject(fakemount.Fault{Release: make(chan struct{}), Match: func(c fakemount.Call) bool { return c.Op == mount.OpMount }})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := manager.SetUpPod(ctx, newPod("web", nfsVolume("n", "10.0.0.1")))
		var own *mount.Error
		if !errors.As(err, &own) || own.Source != "10.0.0.1:/nfs" {
			t.Errorf("err = %v, want the mount's own", err)
		}
	})
}

// What an operation that nobody waits for still does must not surprise the
// next owner of the root.
func TestRootStaysLockedWhileAnOperationRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		release := make(chan struct{})
		w.plugins = besides(stubborn{release: release})
		manager, stop := w.start()
		pod := newPod("web", v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{GitRepo: &v1.GitRepoVolumeSource{Repository: "r"}}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := manager.SetUpPod(ctx, pod); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("err = %v", err)
		}
		stop() // returns although the operation hangs
		second, err := volumemanager.New(w.config())
		if err != nil {
			t.Fatal(err)
		}
		if err := second.Run(t.Context()); !errors.Is(err, volumemanager.ErrRootBusy) {
			t.Errorf("the next owner: %v", err)
		}
		close(release)
		synctest.Wait()
		third, stopThird := w.start()
		if got := third.Explain(); len(got) != 1 {
			t.Errorf("Explain = %+v", got)
		}
		if err := third.TearDownPod(t.Context(), pod.UID); err != nil {
			t.Error(err)
		}
		stopThird()
	})
}
