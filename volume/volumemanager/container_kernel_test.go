package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/subpath"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/volumemanager"
)

// onKernel makes the world's managers mount for real, below a path as the mount
// table has it.
func (w *world) onKernel() {
	w.t.Helper()
	dir, err := filepath.EvalSymlinks(filepath.Dir(w.root))
	if err != nil {
		w.t.Fatal(err)
	}
	w.root, w.mounter = filepath.Join(dir, "root"), host.New(host.Config{Via: host.ViaSystemCalls})
}

func mountEntry(t testing.TB, path string) mount.Entry {
	t.Helper()
	mounts := table.Kernel()
	e, mounted, err := mounts.At(path)
	if err != nil || !mounted {
		t.Errorf("%s: mounted %v, %v", path, mounted, err)
	}
	return e
}

// bindLikeARuntime shows a source elsewhere, as in a container.
func bindLikeARuntime(t testing.TB, m containermounts.Mount) string {
	t.Helper()
	target := filepath.Join(t.TempDir(), "in-container")
	var err error
	if m.File {
		putFile(t, target, "")
	} else {
		err = os.Mkdir(target, 0o755)
	}
	if err == nil {
		err = unix.Mount(m.Source, target, "", unix.MS_BIND|unix.MS_REC, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return target
}

// The flags of the volume's mount are the sub-path's, directory or file.
func TestSubPathKeepsFlags(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.onKernel()
		host := t.TempDir()
		if err := unix.Mount("tmpfs", host, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=1m"); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(host, "dir"), 0o755); err != nil {
			t.Fatal(err)
		}
		putFile(t, filepath.Join(host, "file"), "content")
		manager, _ := w.start()
		pod := mounting(newPod("web", hostPathVolume("h", host)),
			v1.VolumeMount{Name: "h", MountPath: "/dir", SubPath: "dir"}, v1.VolumeMount{Name: "h", MountPath: "/file", SubPath: "file"},
			v1.VolumeMount{Name: "h", MountPath: "/whole"})
		setUp(t, manager, pod)
		flags := []string{"nosuid", "nodev", "noexec"}
		for _, m := range containerMounts(t, manager, pod) {
			if !cmp.Equal(m.Locked, flags) || m.ReadOnly || m.File != (m.SubPath == "file") {
				t.Errorf("%+v", m)
			}
			if m.SubPath == "" {
				continue
			}
			if e := mountEntry(t, m.Source); !slices.Contains(e.Options, "nosuid") || !slices.Contains(e.Options, "nodev") || !slices.Contains(e.Options, "noexec") {
				t.Errorf("%s is mounted with %v", m.Source, e.Options)
			}
		}
		mustRead(t, w.boundAt("web", "h", 1), "content")

		// A volume that has become read-only has its sub-paths bound anew.
		if err := unix.Mount("", host, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			t.Fatal(err)
		}
		manager.DeletePod(pod.UID)
		tearDown(t, manager, pod)
		setUp(t, manager, pod)
		for _, m := range containerMounts(t, manager, pod) {
			if !m.ReadOnly || !cmp.Equal(m.Locked, append([]string{"ro"}, flags...)) {
				t.Errorf("of a read-only mount: %+v", m)
			}
		}
		err := os.WriteFile(w.boundAt("web", "h", 1), nil, 0o644)
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("writing to a read-only sub-path: %v", err)
		}
		pod.Spec.Containers[0].VolumeMounts[0].SubPath = "missing"
		setUp(t, manager, pod)
		_, _, err = manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
		if _, ok := errors.AsType[*subpath.ReadOnlyError](err); !ok {
			t.Errorf("missing on a read-only mount: %v", err)
		}
		tearDown(t, manager, pod)
		w.assertClean()
		mustRead(t, filepath.Join(host, "file"), "content")
	})
}

// A flag that the volume's mount gets while the sub-path is bound is the next
// container's.
func TestBoundSubPathGetsNewFlags(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.onKernel()
		host := t.TempDir()
		if err := unix.Mount("tmpfs", host, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		manager, _ := w.start()
		pod := mounting(newPod("web", hostPathVolume("h", host)), v1.VolumeMount{Name: "h", MountPath: "/dir", SubPath: "dir"})
		setUp(t, manager, pod)
		if m := containerMounts(t, manager, pod)[0]; slices.Contains(m.Locked, "noexec") {
			t.Errorf("before: %+v", m)
		}
		if err := unix.Mount("", host, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOEXEC, ""); err != nil {
			t.Fatal(err)
		}
		m := containerMounts(t, manager, pod)[0]
		if !slices.Contains(m.Locked, "noexec") || !slices.Contains(mountEntry(t, m.Source).Options, "noexec") {
			t.Errorf("the volume is mounted noexec, the sub-path is not: %+v", m)
		}
		tearDown(t, manager, pod)
		w.assertClean()
	})
}

// A container that runs goes on seeing what it was started with; the next one
// sees the config map as it is now.
func TestSubPathRefreshIsForTheNextContainer(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.onKernel()
		w.add(configMap("config", map[string]string{"key": "old"}))
		manager, _ := w.start()
		pod := mounting(newPod("web", configMapVolume("config", "config")), v1.VolumeMount{Name: "config", MountPath: "/etc/key", SubPath: "key"})
		setUp(t, manager, pod)
		first := bindLikeARuntime(t, containerMounts(t, manager, pod)[0])
		if _, err := w.store.Update(t.Context(), configMap("config", map[string]string{"key": "new"})); err != nil {
			t.Fatal(err)
		}
		setUp(t, manager, pod)
		second := bindLikeARuntime(t, containerMounts(t, manager, pod)[0])
		mustRead(t, first, "old")
		mustRead(t, second, "new")
		tearDown(t, manager, pod)
		w.assertClean()
	})
}

// Whatever is mounted where sub-paths are bound is unmounted with the volume:
// of containers that nobody knows any more, stacked, or inside each other.
func TestTearDownOfUnknownSubPaths(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.onKernel()
		manager, _ := w.start()
		pod := mounting(newPod("web", emptyDirVolume("v", v1.StorageMediumMemory)), v1.VolumeMount{Name: "v", MountPath: "/v", SubPath: "x"})
		setUp(t, manager, pod)
		source := containerMounts(t, manager, pod)[0].Source
		other := filepath.Join(filepath.Dir(filepath.Dir(source)), "other", "7")
		for _, dir := range []string{filepath.Join(source, "inside"), other} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := unix.Mount(w.volumeDir("web", "empty-dir", "v"), dir, "", unix.MS_BIND, ""); err != nil {
					t.Fatal(err)
				}
			}
		}
		tearDown(t, manager, pod)
		w.assertClean()
	})
}

// A container that exchanges what a sub-path names for a link, as fast as it
// can, is never shown what lies outside.
func TestSubPathUnderAttack(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.onKernel()
		victim := t.TempDir()
		putFile(t, filepath.Join(victim, "secret"), "the host's")
		manager, _ := w.start()
		pod := mounting(newPod("web", emptyDirVolume("v", v1.StorageMediumMemory)), v1.VolumeMount{Name: "v", MountPath: "/v", SubPath: "a/sub"})
		setUp(t, manager, pod)
		dir := filepath.Join(w.volumeDir("web", "empty-dir", "v"), "a")
		if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			links := []string{victim, strings.Repeat("../", 20) + victim, "../../" + filepath.Base(dir)}
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				swapForALink(dir, links[i%len(links)])
			}
		}()
		shown, refused := 0, 0
		for range 400 {
			mounts, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
			if err != nil {
				refused++
				continue
			}
			shown++
			if _, err := os.Lstat(filepath.Join(mounts[0].Source, "secret")); err == nil {
				t.Fatal("the host's file is shown")
			}
		}
		close(stop)
		<-stopped
		t.Logf("%d shown, %d refused", shown, refused)
		tearDown(t, manager, pod)
		w.assertClean()
		mustRead(t, filepath.Join(victim, "secret"), "the host's")
	})
}

// swapForALink makes "sub" a link for a moment. Each step may fail; what counts
// is that the next round begins with a directory.
func swapForALink(dir, to string) {
	sub, aside := filepath.Join(dir, "sub"), filepath.Join(dir, "aside")
	if unix.Rename(sub, aside) != nil {
		_ = unix.Unlink(sub)
		_ = unix.Mkdir(sub, 0o755)
		return
	}
	_ = unix.Symlink(to, sub)
	_ = unix.Unlink(sub)
	_ = unix.Rename(aside, sub)
}

// A sub-path of a file system that does not answer is waited for only so long,
// holds up nobody else's, and not the tear-down.
func TestSubPathOfAHungFileSystem(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.withFUSE(t, mount.UnmountOptions{ForceAfter: 200 * time.Millisecond, LazyAfter: time.Minute})
		manager, _ := w.start()
		mount := v1.VolumeMount{Name: "v", MountPath: "/v", SubPath: "directory/x"}
		hung := mounting(newPod("hung", fuseVolume("v", "")), mount)
		volumes, err := manager.SetUpPod(t.Context(), hung)
		if err != nil {
			t.Fatal(err)
		}
		path, _ := volumes.Path("v")
		startStuck(t, p.server(hung), path)
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, _, err := manager.ContainerMounts(ctx, hung.UID, "c", containermounts.Options{})
			cancel()
			if failed, ok := errors.AsType[*volume.Error](err); !ok || failed.Volume != "v" || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("err = %v", err)
			}
		}
		assertWholeVolumeOfAHungFileSystem(t, manager, hung, path)
		other := mounting(newPod("other", emptyDirVolume("v", "")), mount)
		readyWithin(t, soonEnough, func() error {
			setUp(t, manager, other)
			_, _, err := manager.ContainerMounts(t.Context(), other.UID, "c", containermounts.Options{})
			return err
		})
		start := time.Now()
		tearDown(t, manager, hung)
		if took := time.Since(start); took > soonEnough {
			t.Errorf("the tear-down took %v", took)
		}
		tearDown(t, manager, other)
		w.assertClean()
	})
}

// assertWholeVolumeOfAHungFileSystem: what the mount table shows is answered by
// it; a directory of the host's inside is waited for.
func assertWholeVolumeOfAHungFileSystem(t *testing.T, manager *volumemanager.Manager, hung *v1.Pod, path string) {
	t.Helper()
	hung = mounting(hung.DeepCopy(), v1.VolumeMount{Name: "v", MountPath: "/v"})
	if err := manager.PutPod(hung); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if mounts, _, err := manager.ContainerMounts(ctx, hung.UID, "c", containermounts.Options{}); err != nil || mounts[0].Source != path {
		t.Errorf("the whole volume: %+v, %v", mounts, err)
	}
	inside := mounting(newPod("inside", hostPathVolume("h", filepath.Join(path, "directory"))), v1.VolumeMount{Name: "h", MountPath: "/h"})
	setUp(t, manager, inside)
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, _, err := manager.ContainerMounts(ctx, inside.UID, "c", containermounts.Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a directory inside: %v", err)
	}
	tearDown(t, manager, inside)
}

// A hundred sub-paths a pod, which have taken the kubelet hours to unmount
// (kubernetes issue 105642).
func TestHundredSubPathsOnTheKernel(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.onKernel()
		manager, _ := w.start()
		pod := newPod("web", emptyDirVolume("v", ""))
		for i := range 100 {
			pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts,
				v1.VolumeMount{Name: "v", MountPath: fmt.Sprint("/v", i), SubPath: fmt.Sprint("dir/", i)})
		}
		setUp(t, manager, pod)
		start := time.Now()
		containerMounts(t, manager, pod)
		bound := time.Now()
		containerMounts(t, manager, pod)
		again := time.Now()
		tearDown(t, manager, pod)
		gone := time.Now()
		t.Logf("bound in %v, looked at again in %v, torn down in %v", bound.Sub(start), again.Sub(bound), gone.Sub(again))
		if gone.Sub(start) > 10*time.Minute { // on a busy machine, by emulation
			t.Errorf("all that took %v", gone.Sub(start))
		}
		w.assertClean()
	})
}
