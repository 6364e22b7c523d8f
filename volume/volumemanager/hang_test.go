package volumemanager_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/silentfuse"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/volumemanager"
)

// silent is the server of the tests that never answers, answering the other.
const (
	answering = "10.0.0.1"
	silent    = "10.0.0.2"
)

func ofSilent(op string) func(fakemount.Call) bool {
	return func(c fakemount.Call) bool { return c.Op == op && strings.HasPrefix(c.Source, silent+":") }
}

// threads is how many the process has.
func threads(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks)
}

// load is what retries must not add to.
type load struct{ goroutines, threads int }

func loadNow(t *testing.T) load { return load{runtime.NumGoroutine(), threads(t)} }

// grownFrom fails the test if there is more than before. Some goroutines may be
// about to end, and the runtime may start threads of its own at any time, more of
// them where there are more processors; what is left behind by each of a thousand
// attempts is more than that.
func (l load) grownFrom(t *testing.T, before load) {
	t.Helper()
	if l.goroutines > before.goroutines+100 || l.threads > before.threads+100+runtime.GOMAXPROCS(0) {
		t.Errorf("%+v before, %+v now", before, l)
	}
}

// statusOf is the one row of a pod.
func statusOf(t *testing.T, manager *volumemanager.Manager, pod string) volumemanager.VolumeStatus {
	t.Helper()
	for _, row := range manager.Explain() {
		if row.Pod.Name == pod {
			return row
		}
	}
	t.Fatalf("Explain does not know %s", pod)
	return volumemanager.VolumeStatus{}
}

// soonEnough is when something is done that does not wait for what hangs, which
// would take a minute at least: on a busy machine, by emulation, with a slow disk.
const soonEnough = 30 * time.Second

// readyWithin fails the test unless the pod's volumes are mounted that soon.
func readyWithin(t *testing.T, limit time.Duration, setUp func() error) {
	t.Helper()
	start := time.Now()
	if err := setUp(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > limit {
		t.Errorf("a pod of the answering server took %v", took)
	}
}

func TestAServerThatNeverAnswersHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, _ := w.start()
		w.fake.Inject(fakemount.Fault{Match: ofSilent(mount.OpMount), Release: make(chan struct{})})
		hung := newPod("hung", nfsVolume("v", silent))
		began := time.Now()
		if err := manager.PutPod(hung); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, name := range []string{"one", "two"} {
			readyWithin(t, time.Second, func() error {
				_, err := manager.SetUpPod(t.Context(), newPod(name, nfsVolume("v", answering), emptyDirVolume("e", "")))
				return err
			})
		}
		if row := statusOf(t, manager, "hung"); row.Operation != "set-up" || !row.Began.Equal(began) || row.State != volumemanager.StatePending {
			t.Errorf("Explain = %+v", row)
		}
		const soon, tries = 10, 1000
		var first load
		for n := 1; n <= tries; n++ {
			time.Sleep(time.Minute) // well within an attempt
			synctest.Wait()
			if row := statusOf(t, manager, "hung"); row.Operation != "set-up" || row.Failures != n-1 {
				t.Fatalf("at attempt %d: %+v", n, row)
			}
			if n == soon {
				first = loadNow(t)
			}
			if n < tries {
				time.Sleep(time.Until(nextAttempt(t, manager)))
				synctest.Wait()
			}
		}
		loadNow(t).grownFrom(t, first)
		start := time.Now()
		if err := manager.TearDownPod(t.Context(), hung.UID); err != nil {
			t.Errorf("tear-down of what never was mounted: %v", err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("it took %v", took)
		}
		if left := mountsOf(t, w, silent); left != 0 || len(w.records()) != 4 {
			t.Errorf("%d mounts of the silent server, records %v", left, w.records())
		}
	})
}

// nextAttempt waits for the end of the hung pod's attempt and returns when the
// next one begins.
func nextAttempt(t *testing.T, manager *volumemanager.Manager) time.Time {
	t.Helper()
	for range 10 {
		time.Sleep(time.Minute)
		synctest.Wait()
		if next := statusOf(t, manager, "hung").NextRetry; !next.IsZero() {
			return next
		}
		if row := statusOf(t, manager, "hung"); row.Operation == "set-up" && time.Since(row.Began) < time.Minute {
			return time.Now() // it has begun already, after a short pause
		}
	}
	t.Fatal("the attempt does not end")
	return time.Time{}
}

func mountsOf(t *testing.T, w *world, server string) int {
	t.Helper()
	entries, err := w.fake.Table().BySource(server + ":/nfs")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestPodsOfADeadServerAreDeletedByTheLadder(t *testing.T) {
	hangs := func(nth int) func(chan struct{}) fakemount.Fault {
		return func(never chan struct{}) fakemount.Fault {
			return fakemount.Fault{Match: func(c fakemount.Call) bool { return c.Op == mount.OpUnmount && strings.Contains(c.Target, "uid-hung") }, Nth: nth, Release: never}
		}
	}
	tests := map[string]struct {
		fault func(chan struct{}) fakemount.Fault
		took  time.Duration // until the volume is gone, the ladder's and that of one pause
	}{
		"force frees it": {hangs(1), time.Minute},
		"only lazy does": {hangs(0), 2*time.Minute + 500*time.Millisecond},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				manager, _ := w.start()
				hung := newPod("hung", nfsVolume("v", silent))
				if _, err := manager.SetUpPod(t.Context(), hung); err != nil {
					t.Fatal(err)
				}
				w.fake.Inject(tc.fault(make(chan struct{})))
				start := time.Now()
				ended := make(chan error, 1)
				go func() { ended <- manager.TearDownPod(t.Context(), hung.UID) }()
				time.Sleep(30 * time.Second)
				if row := statusOf(t, manager, "hung"); row.Operation != "tear-down" || !row.Began.Equal(start) {
					t.Errorf("Explain = %+v", row)
				}
				readyWithin(t, time.Second, func() error {
					_, err := manager.SetUpPod(t.Context(), newPod("one", nfsVolume("v", answering)))
					return err
				})
				if err := <-ended; err != nil && !errors.As(err, new(*volumemanager.PodError)) {
					t.Error(err)
				}
				if err := manager.WaitForUnmounted(t.Context(), hung.UID); err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took != tc.took {
					t.Errorf("it took %v, want %v", took, tc.took)
				}
				if left := mountsOf(t, w, silent); left != 0 || len(w.records()) != 1 {
					t.Errorf("%d mounts of the silent server, records %v", left, w.records())
				}
			})
		})
	}
}

// withFUSE gives the world's managers the plugin and the kernel.
func (w *world) withFUSE(t *testing.T, options mount.UnmountOptions) *fusePlugin {
	t.Helper()
	silentfuse.Need(t)
	p := &fusePlugin{t: t, options: options}
	w.plugins = besides(p)
	w.mounter = host.New(host.Config{Via: host.ViaSystemCalls})
	return p
}

// startStuck starts a process that asks the silent server something and hangs.
// It is waited for at the end of the test, after the server has been closed.
func startStuck(t *testing.T, s *silentfuse.Server, path string) (ended <-chan error) {
	t.Helper()
	s.FallSilent()
	cmd := exec.Command("stat", path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- cmd.Wait() // fails, as the file system does
		close(done)
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	<-s.Asked()
	return done
}

func TestAFileSystemThatStopsAnsweringHoldsUpNoOther(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.withFUSE(t, mount.UnmountOptions{ForceAfter: 200 * time.Millisecond, LazyAfter: time.Minute})
		manager, _ := w.start()
		hung, waits := newPod("hung", fuseVolume("v", "")), newPod("waits")
		volumes, err := manager.SetUpPod(t.Context(), hung)
		if err != nil {
			t.Fatal(err)
		}
		path, _ := volumes.Path("v")
		startStuck(t, p.server(hung), path)
		withVolumes(waits, fuseVolume("v", filepath.Join(path, "directory")))
		began := time.Now()
		if err := manager.PutPod(waits); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"one", "two"} {
			readyWithin(t, soonEnough, func() error {
				_, err := manager.SetUpPod(t.Context(), newPod(name, fuseVolume("v", ""), emptyDirVolume("m", v1.StorageMediumMemory)))
				return err
			})
		}
		if row := statusOf(t, manager, "waits"); row.Operation != "set-up" || row.Began.Before(began) || row.Began.After(time.Now()) {
			t.Errorf("Explain = %+v", row)
		}
		if err := manager.TearDownPod(t.Context(), waits.UID); err != nil {
			t.Errorf("tear-down of what waits for the silent server: %v", err)
		}

		start := time.Now()
		if err := manager.TearDownPod(t.Context(), hung.UID); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > soonEnough {
			t.Errorf("the deletion of the hung pod took %v", took)
		}
		for _, name := range []string{"one", "two"} {
			if err := manager.TearDownPod(t.Context(), types.UID("uid-"+name)); err != nil {
				t.Error(err)
			}
		}
		w.assertClean()
	})
}

func TestAMountThatHangsInTheKernelIsNotAddedTo(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.withFUSE(t, mount.UnmountOptions{ForceAfter: 200 * time.Millisecond, LazyAfter: time.Minute})
		manager, _ := w.start()
		hung, waits := newPod("hung", fuseVolume("v", "")), newPod("waits")
		volumes, err := manager.SetUpPod(t.Context(), hung)
		if err != nil {
			t.Fatal(err)
		}
		path, _ := volumes.Path("v")
		startStuck(t, p.server(hung), path)
		p.patience = 2 * time.Millisecond
		withVolumes(waits, fuseVolume("v", filepath.Join(path, "directory")))
		const soon, tries = 10, 1000
		var first load
		for n := 1; n <= tries; n++ {
			if _, err := manager.SetUpPod(t.Context(), waits); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("attempt %d: %v", n, err)
			}
			if n == soon {
				first = loadNow(t)
			}
		}
		loadNow(t).grownFrom(t, first)
		for _, pod := range []*v1.Pod{waits, hung} {
			if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
				t.Error(err)
			}
		}
		w.assertClean()
	})
}

// isDetached fails the test unless the hung pod's volume is known to be
// detached, with its record and its directory.
func (w *world) isDetached(manager *volumemanager.Manager, path string) {
	w.t.Helper()
	mounts := table.Of(w.config().Mounter)
	inspected, err := volumemanager.Inspect(w.root, mounts)
	if err != nil {
		w.t.Error(err)
	}
	for _, row := range slices.Concat(manager.Explain(), inspected) {
		if row.State != volumemanager.StateDetached || !errors.As(row.Err, new(*lazyunmount.Error)) {
			w.t.Errorf("status %+v", row)
		}
	}
	if len(inspected) != 1 || len(w.records()) != 1 {
		w.t.Errorf("%d rows, records %v", len(inspected), w.records())
	}
	if _, err := os.Lstat(path); err != nil {
		w.t.Errorf("its directory: %v", err)
	}
}

func TestALazilyDetachedVolumeStaysWhileItIsInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		hung := newPod("hung", nfsVolume("v", silent))
		volumes, err := manager.SetUpPod(t.Context(), hung)
		if err != nil {
			t.Fatal(err)
		}
		path, _ := volumes.Path("v")
		done, err := w.fake.Use(path)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // by the ladder, and then by asking
			err := manager.TearDownPod(t.Context(), hung.UID)
			if detached, ok := errors.AsType[*lazyunmount.Error](err); !ok || !detached.InUse() {
				t.Fatalf("err = %v", err)
			}
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		w.isDetached(manager, path)
		stop()
		manager, _ = w.start() // which knows it by the record
		w.isDetached(manager, path)
		problems, err := volumemanager.Check(t.Context(), w.config())
		if err != nil || len(problems) != 1 || problems[0].Kind != volumemanager.ProblemDetached || problems[0].Repair != "" {
			t.Errorf("the plan: %+v, %v", problems, err)
		}
		if err := manager.TearDownPod(t.Context(), hung.UID); !errors.As(err, new(*lazyunmount.Error)) {
			t.Errorf("err = %v", err)
		}
		w.isDetached(manager, path)
		done()
		if err := manager.WaitForUnmounted(t.Context(), hung.UID); err != nil {
			t.Error(err)
		}
		w.assertClean()
	})
}

func TestADetachedFUSEFileSystemStaysWhileItIsInUse(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.withFUSE(t, mount.UnmountOptions{LazyAfter: 100 * time.Millisecond})
		manager, stop := w.start()
		hung := newPod("hung", fuseVolume("v", ""))
		volumes, err := manager.SetUpPod(t.Context(), hung)
		if err != nil {
			t.Fatal(err)
		}
		path, _ := volumes.Path("v")
		s := p.server(hung)
		ended := startStuck(t, s, path)
		for range 2 {
			err := manager.TearDownPod(t.Context(), hung.UID)
			if detached, ok := errors.AsType[*lazyunmount.Error](err); !ok || !detached.InUse() || len(w.records()) != 1 {
				t.Fatalf("err = %v, records %v", err, w.records())
			}
		}
		w.isDetached(manager, path)
		stop()
		manager, _ = w.start() // which knows it by the record
		w.isDetached(manager, path)
		if err := manager.TearDownPod(t.Context(), hung.UID); !errors.As(err, new(*lazyunmount.Error)) {
			t.Errorf("after a restart: %v", err)
		}
		select {
		case err := <-ended:
			t.Errorf("the process was cut off: %v", err)
		default:
		}
		s.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := manager.WaitForUnmounted(ctx, hung.UID); err != nil {
			t.Error(err)
		}
		w.assertClean()
	})
}
