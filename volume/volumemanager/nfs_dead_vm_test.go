package volumemanager_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/nfsserver"
	"github.com/podvol/podvol/util/testenv/vmtest"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/volumemanager"
)

// bounded runs f and fails the test if it takes longer than limit.
func bounded(t *testing.T, what string, limit time.Duration, f func() error) {
	t.Helper()
	start := time.Now()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		took := time.Since(start)
		t.Logf("| %-45s | %5.2f s |", what, took.Seconds())
		if err != nil || took > limit {
			t.Errorf("%s: %v after %v, want at most %v", what, err, took, limit)
		}
	case <-time.After(2*limit + 10*time.Second):
		t.Fatalf("%s has not ended after %v", what, time.Since(start))
	}
}

// TestNodeOfADeadServer has a server die under pods that use it, one of which
// has unwritten data, and the node go on, be restarted, and shut down.
func TestNodeOfADeadServer(t *testing.T) {
	packages := nfsserver.Unpack(t)
	vmtest.Run(t, func(t *testing.T) {
		for _, kind := range []nfsserver.Kind{nfsserver.Kernel, nfsserver.Ganesha} {
			t.Run(kind.String(), func(t *testing.T) { testNodeOfADeadServer(t, packages, kind) })
		}
	})
}

func testNodeOfADeadServer(t *testing.T, packages nfsserver.Packages, kind nfsserver.Kind) {
	t.Logf("| %-45s |", "a dead server: "+kind.String())
	alive := nfsserver.Start(t, packages, nfsserver.Config{Name: "alive"})
	dead := nfsserver.Start(t, packages, nfsserver.Config{Kind: kind, Name: "dead", Exports: []nfsserver.Export{{Path: "/data"}, {Path: "/dirty"}}})
	alive.Put("/data/hello", "hello")
	w := newNFSNode(t, host.Config{})
	w.setUpTimeout = 30 * time.Second
	manager, stop := w.start()
	both := newPod("both", exportVolume("dead", dead.Address(), "/data"), exportVolume("alive", alive.Address(), "/data"), emptyDirVolume("e", v1.StorageMediumMemory))
	dirty, kept := newPod("dirty", exportVolume("v", dead.Address(), "/dirty")), newPod("kept", exportVolume("v", dead.Address(), "/data"))
	for _, pod := range []*v1.Pod{both, dirty, kept} {
		if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	volumes, err := manager.SetUpPod(t.Context(), dirty)
	if err != nil {
		t.Fatal(err)
	}
	path, _ := volumes.Path("v")
	killedWriter(t, dead, path)
	defer dead.Pass()
	before := threads(t)

	bounded(t, "set-up of another pod", nodeSlack, func() error {
		_, err := manager.SetUpPod(t.Context(), newPod("other", exportVolume("v", alive.Address(), "/data"), emptyDirVolume("e", "")))
		return err
	})
	bounded(t, "metrics of the living volume of a pod of both", nodeSlack, func() error {
		_, err := manager.Metrics(t.Context(), both.UID, "alive")
		return err
	})
	for range 3 {
		bounded(t, "metrics of its dead volume, within a second", time.Second+nodeSlack, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := manager.Metrics(ctx, both.UID, "dead"); !errors.Is(err, mount.ErrTimedOut) {
				return fmt.Errorf("not timed out: %w", err)
			}
			return nil
		})
	}
	if !callsHang() {
		t.Error("no call hangs, or callsHang does not know it") // it would not be waited for at the end
	}
	bounded(t, "tear-down of another pod", nodeSlack, func() error { return manager.TearDownPod(t.Context(), "uid-other") })
	if now := threads(t); now > before+12 {
		t.Errorf("%d threads before, %d now", before, now)
	}

	stop()
	bounded(t, "restart of the manager", nodeSlack, func() error {
		manager, stop = w.start()
		return nil
	})
	defer stop()
	bounded(t, "tear-down of what a killed process wrote to", nodeLazyAfter+nodeSlack, func() error { return tearDownAll(t, manager, dirty) })
	// Measuring it still hangs, and the pod that stays is not to suffer from that.
	bounded(t, "tear-down of the pod of both, by detaching", nodeLazyAfter+nodeSlack, func() error {
		if err := manager.TearDownPod(t.Context(), both.UID); !errors.As(err, new(*lazyunmount.Error)) {
			return fmt.Errorf("not detached: %w", err)
		}
		return nil
	})
	if _, err := manager.SetUpPod(t.Context(), newPod("other", exportVolume("v", alive.Address(), "/data"))); err != nil {
		t.Error(err)
	}
	bounded(t, "sync(2), which the end of a machine waits for", nodeSlack, func() error { unix.Sync(); return nil })

	dead.Pass()
	bounded(t, "tear-down of the last after the server is back", 60*time.Second, func() error { return tearDownAll(t, manager, kept, both) })
	bounded(t, "a new pod of the server that is back", 60*time.Second, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := manager.PutPod(newPod("new", exportVolume("v", dead.Address(), "/data"))); err != nil {
			return err
		}
		return manager.WaitForMounted(ctx, "uid-new")
	})
	for _, name := range []string{"new", "other"} {
		if err := tearDownAll(t, manager, newPod(name)); err != nil {
			t.Error(err)
		}
	}
	bounded(t, "end of the calls that hung", 3*time.Minute, hungCallsEnded)
	w.assertClean()
}

// tearDownAll tears pods down to the end, also those of which something was
// detached first.
func tearDownAll(t *testing.T, manager *volumemanager.Manager, pods ...*v1.Pod) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var errs []error
	for _, pod := range pods {
		if err := manager.TearDownPod(ctx, pod.UID); !isDetachedOnly(err) {
			errs = append(errs, err)
		}
		errs = append(errs, manager.WaitForUnmounted(ctx, pod.UID))
	}
	return errors.Join(errs...)
}

// wantOwnExports reads what names an export through each of its mounts: every
// pod is shown its own.
func wantOwnExports(t *testing.T, sources map[string]string) {
	t.Helper()
	if len(sources) == 0 {
		t.Error("no mounts")
	}
	for path, source := range sources {
		if who, err := os.ReadFile(filepath.Join(path, "who")); err != nil || string(who) != source {
			t.Errorf("%s shows %q, %v; want %s", path, who, err, source)
		}
	}
}

// volumePath is where a pod's volume v is.
func (w *world) volumePath(pod *v1.Pod) string {
	return filepath.Join(w.root, "pods", string(pod.UID), "volumes/kubernetes.io~nfs/v")
}

// hasMounts compares the kernel's mount table with what is wanted.
func (w *world) hasMounts(t *testing.T, wanted map[string]string) {
	t.Helper()
	if diff := cmpDiff(wanted, w.nfsMounts(t)); diff != "" {
		t.Errorf("mount table (-want +got):\n%s", diff)
	}
}

// nfsMounts are the sources of the kernel's NFS mounts by mount point.
func (w *world) nfsMounts(t *testing.T) map[string]string {
	t.Helper()
	mounts := table.Of(w.mounter)
	all, err := mounts.All()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, e := range all {
		if e.FSType == "nfs" || e.FSType == "nfs4" {
			if _, twice := found[e.Target]; twice {
				t.Errorf("%s is mounted twice", e.Target)
			}
			found[e.Target] = e.Source
		}
	}
	return found
}

// isDetachedOnly reports whether a tear-down failed only for what was detached.
func isDetachedOnly(err error) bool {
	return err == nil || errors.As(err, new(*lazyunmount.Error))
}

// hungCallsEnded waits until all calls have ended that anything had given up
// waiting for, while the server is still there: not only unmounts, since any call
// may be the last user of what was detached, and says NFSv4's good-bye as it ends
// (nfs4_destroy_clientid in the stack of a statfs(2)).
func hungCallsEnded() error {
	for callsHang() {
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

// callsHang tells whether a call of package flight is under way.
func callsHang() bool {
	for size := 1 << 20; ; size *= 2 {
		stacks := make([]byte, size)
		if n := runtime.Stack(stacks, true); n < size {
			return bytes.Contains(stacks[:n], []byte("util/blockingcall.(*Group[...]).DoNoticing.func"))
		}
	}
}
