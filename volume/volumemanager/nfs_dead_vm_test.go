package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/nfsserver"
	"github.com/podvol/podvol/util/vmtest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/plugins/nfs"
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

// killedWriter is a container's process that has written to a volume more than the
// server has got, and was killed.
func killedWriter(t *testing.T, s *nfsserver.Server, dir string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", `exec 3>big; echo open; read go; exec head -c 20000000 /dev/zero >&3`)
	cmd.Dir = dir
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	s.Drop()
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }() // it was killed
	t.Cleanup(func() { <-ended })
	select {
	case <-time.After(2 * time.Second):
	case <-ended:
		t.Fatalf("the writer has ended by itself: %v", cmd.ProcessState)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// TestNodeOfADeadServer has a server die under pods that use it, one of which
// has unwritten data, and the node go on, be restarted, and shut down.
func TestNodeOfADeadServer(t *testing.T) {
	packages := nfsserver.Unpack(t)
	vmtest.Run(t, func(t *testing.T) {
		alive := nfsserver.Start(t, packages, nfsserver.Config{Name: "alive"})
		dead := nfsserver.Start(t, packages, nfsserver.Config{Name: "dead", Exports: []nfsserver.Export{{Path: "/data"}, {Path: "/dirty"}}})
		alive.Put("/data/hello", "hello")
		w := newNFSNode(t, mount.Config{})
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
			if err := manager.TearDownPod(t.Context(), both.UID); !errors.As(err, new(*volume.DetachedError)) {
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
		bounded(t, "end of the calls that hung", 3*time.Minute, unmountsEnded)
		w.assertClean()
	})
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

// setUpLimit is for 200 mounts at once by emulation, which takes half a minute on
// a machine with nothing else to do, and minutes on a busy one.
const setUpLimit = 6 * time.Minute

// TestNodeOfTwoHundredPods has 200 pods on the ten exports of five servers, half
// of which are deleted while one server is dead.
func TestNodeOfTwoHundredPods(t *testing.T) {
	packages := nfsserver.Unpack(t)
	vmtest.Run(t, func(t *testing.T) {
		var servers []*nfsserver.Server
		for i := range 5 {
			s := nfsserver.Start(t, packages, nfsserver.Config{Name: fmt.Sprint("s", i), Exports: []nfsserver.Export{{Path: "/a"}, {Path: "/b"}}})
			for _, path := range []string{"/a", "/b"} {
				s.Put(path+"/who", s.Address()+":"+path)
			}
			servers = append(servers, s)
		}
		dead := servers[0]
		w := newNFSNode(t, mount.Config{})
		w.plugins = func() []volume.VolumePlugin {
			return plugins.All(nfs.New(nfs.Config{
				ForceAfter: nodeForceAfter, LazyAfter: nodeLazyAfter,
				Breaker: nfs.BreakerConfig{Patience: setUpLimit}, // 200 mounts at once, by emulation
			}))
		}
		w.setUpTimeout = setUpLimit
		manager, _ := w.start()
		wanted := map[string]string{} // sources by mount point
		var pods, stay, go1, goDead []*v1.Pod
		for i := range 200 {
			server, path := servers[i%5], []string{"/a", "/b"}[i/5%2]
			pod := newPod(fmt.Sprintf("pod-%03d", i), exportVolume("v", server.Address(), path))
			pods = append(pods, pod)
			switch {
			case i%4 < 2:
				stay = append(stay, pod)
			case server == dead:
				goDead = append(goDead, pod)
			default:
				go1 = append(go1, pod)
			}
			wanted[w.volumePath(pod)] = server.Address() + ":" + path
		}
		// The first mount loads the kernel's modules. Of 200 that want them at once the
		// kernel refuses many (ENODEV): it runs 50 modprobes and waits five seconds.
		if _, err := manager.SetUpPod(t.Context(), pods[0]); err != nil {
			t.Fatal(err)
		}
		bounded(t, "200 pods set up", setUpLimit, func() error {
			var errs []error
			for _, pod := range pods {
				errs = append(errs, manager.PutPod(pod))
			}
			ctx, cancel := context.WithTimeout(t.Context(), setUpLimit)
			defer cancel()
			for _, pod := range pods {
				errs = append(errs, manager.WaitForMounted(ctx, pod.UID))
			}
			return errors.Join(errs...)
		})
		if t.Failed() {
			t.FailNow() // the rest would say only that again, slowly
		}
		w.hasMounts(t, wanted)
		wantOwnExports(t, wanted)

		dead.Drop()
		defer dead.Pass()
		for _, pod := range slices.Concat(go1, goDead) {
			delete(wanted, w.volumePath(pod))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		ended := make(chan error, len(goDead))
		start := time.Now()
		for _, pod := range goDead {
			go func() {
				if err := manager.TearDownPod(ctx, pod.UID); !isDetachedOnly(err) {
					ended <- err
					return
				}
				ended <- manager.WaitForUnmounted(ctx, pod.UID)
			}()
		}
		bounded(t, fmt.Sprintf("%d pods of living servers deleted", len(go1)), 30*time.Second, func() error {
			gone := make(chan error, len(go1))
			for _, pod := range go1 {
				go func() { gone <- manager.TearDownPod(ctx, pod.UID) }()
			}
			var errs []error
			for range go1 {
				errs = append(errs, <-gone)
			}
			return errors.Join(errs...)
		})
		for range goDead {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		t.Logf("| %-45s | %5.2f s |", fmt.Sprintf("%d pods of the dead server deleted", len(goDead)), time.Since(start).Seconds())
		w.hasMounts(t, wanted)
		living := maps.Clone(wanted)
		maps.DeleteFunc(living, func(_, source string) bool { return strings.HasPrefix(source, dead.Address()+":") })
		wantOwnExports(t, living)
		if len(w.records()) != len(stay) {
			t.Errorf("%d records of %d pods", len(w.records()), len(stay))
		}
		bounded(t, "a new pod of a living server meanwhile", nodeSlack, func() error {
			if _, err := manager.SetUpPod(t.Context(), newPod("new", exportVolume("v", servers[1].Address(), "/a"))); err != nil {
				return err
			}
			return manager.TearDownPod(t.Context(), "uid-new")
		})

		dead.Pass()
		wantOwnExports(t, wanted)
		bounded(t, "the server is back: the other pods deleted", 90*time.Second, func() error {
			gone := make(chan error, len(stay))
			for _, pod := range stay {
				go func() { gone <- tearDownAll(t, manager, pod) }()
			}
			var errs []error
			for range stay {
				errs = append(errs, <-gone)
			}
			return errors.Join(errs...)
		})
		w.hasMounts(t, map[string]string{})
		w.assertClean()
	})
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
	table, err := mount.TableOf(w.mounter)
	if err != nil {
		t.Fatal(err)
	}
	all, err := table.All()
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
	return err == nil || errors.As(err, new(*volume.DetachedError))
}

// unmountsEnded waits until no thread hangs in umount2(2), as in NFSv4's
// good-bye to a server that was dead.
func unmountsEnded() error {
	for stacks := make([]byte, 1<<20); ; time.Sleep(100 * time.Millisecond) {
		if n := runtime.Stack(stacks, true); !strings.Contains(string(stacks[:n]), "hostCalls.unmount") {
			return nil
		}
	}
}
