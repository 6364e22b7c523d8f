package volumemanager_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/loophold"
	"github.com/podvol/podvol/util/testenv/calltrace"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/volumemanager"
)

// blockWorld mounts for real, and has a claim "data" of a local volume at path.
func blockWorld(t *testing.T, path string) *world {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return blockWorldAt(t, base, path)
}

func blockWorldAt(t *testing.T, dir, path string) *world {
	t.Helper()
	w := newWorldIn(t, dir)
	t.Cleanup(func() { // loop devices outlive whoever has failed
		if err := loophold.Release(w.bindOfData()); err != nil {
			t.Error(err)
		}
	})
	w.mounter = host.New(host.Config{})
	claim, pv := blockPair("data", "pv-data")
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}}
	w.add(claim, pv)
	return w
}

// bindOfData is where the device is bound for the pod "web".
func (w *world) bindOfData() string {
	return filepath.Join(w.root, "plugins/kubernetes.io~local-volume/volumeDevices/pv-data/uid-web")
}

// assertNoDevice is assertClean, also of what holds devices.
func (w *world) assertNoDevice() {
	w.t.Helper()
	w.assertClean()
	global := filepath.Dir(w.bindOfData())
	if _, err := os.Lstat(global); !errors.Is(err, fs.ErrNotExist) {
		w.t.Errorf("%s is left (%v)", global, err)
	}
	if held, err := loophold.Holding(w.bindOfData()); err != nil || len(held) > 0 {
		w.t.Errorf("held by %v, %v", held, err)
	}
}

// A pod gets the device of the node, and it is there and held until the pod has
// gone, whoever runs meanwhile.
func TestKernelBlockVolume(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if !strings.HasSuffix(t.Name(), "/root") {
			noDeviceForUsers(t)
			return
		}
		disk := loopdev.New(t, 1<<20)
		path := filepath.Join(t.TempDir(), "disk")
		if err := os.Symlink(disk.Path, path); err != nil {
			t.Fatal(err)
		}
		w := blockWorld(t, path)
		manager, stop := w.start()
		pod := blockPod("web", "data")
		mustSetUp(t, manager, pod)
		_, devices, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
		if err != nil || len(devices) != 1 {
			t.Fatal(devices, err)
		}
		if row := manager.Explain()[0]; row.Device != disk.Path || row.Path != devices[0].Source {
			t.Errorf("row %+v", row)
		}
		device, err := os.OpenFile(devices[0].Source, os.O_WRONLY|unix.O_DSYNC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = device.WriteAt([]byte("written by the pod"), 4096)
		if err := errors.Join(err, device.Close()); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(disk.Backing)
		if err != nil || !strings.HasPrefix(string(content[4096:]), "written by the pod") {
			t.Errorf("the disk holds %q, %v", content[4096:4200], err)
		}
		bind := w.bindOfData()
		held, err := loophold.Holding(bind)
		if err != nil || len(held) != 1 {
			t.Errorf("held by %v, %v", held, err)
		}
		stop()
		manager, stop = w.start()
		mustSetUp(t, manager, pod)
		if again, err := loophold.Holding(bind); err != nil || len(again) != 1 || again[0] != held[0] {
			t.Errorf("after a restart, held by %v, %v; before, by %v", again, err, held)
		}
		// Another device of the same name is not the pod's.
		if err := errors.Join(os.Remove(path), os.Symlink(loopdev.New(t, 1<<20).Path, path)); err != nil {
			t.Fatal(err)
		}
		_, err = manager.SetUpPod(t.Context(), pod)
		if !errors.Is(err, volumemanager.ErrDeviceReplaced) {
			t.Errorf("SetUpPod = %v", err)
		}
		if link, err := os.Readlink(devices[0].Source); link != disk.Path || err != nil {
			t.Errorf("the pod's link leads to %s, %v", link, err)
		}
		stop()
		manager, _ = w.start()
		mustTearDown(t, manager, pod)
		w.assertNoDevice()
	})
}

func noDeviceForUsers(t *testing.T) {
	t.Helper()
	w := blockWorld(t, "/dev/null")
	manager, _ := w.start()
	pod := blockPod("web", "data")
	if _, err := manager.SetUpPod(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "a block device is needed") {
		t.Errorf("SetUpPod = %v", err)
	}
	mustTearDown(t, manager, pod)
	w.assertNoDevice()
}

// blockCrashDirVar and blockCrashDiskVar tell the process that is to be killed
// where it works.
const (
	blockCrashDirVar  = "PODVOL_VOLUMEMANAGER_BLOCK_CRASH_DIR"
	blockCrashDiskVar = "PODVOL_VOLUMEMANAGER_BLOCK_CRASH_DISK"
)

// TestBlockCrashScenario is not a test of its own: it is the life of a pod in
// the process that is killed.
func TestBlockCrashScenario(t *testing.T) {
	dir := os.Getenv(blockCrashDirVar)
	if dir == "" {
		return
	}
	manager, stop := blockWorldAt(t, dir, os.Getenv(blockCrashDiskVar)).start()
	pod := blockPod("web", "data")
	mustSetUp(t, manager, pod)
	mustTearDown(t, manager, pod)
	stop()
}

// A process that is killed at any system call that changes something leaves a
// state from which the next one goes on, to either end.
func TestKernelCrashAroundABlockVolume(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if !strings.HasSuffix(t.Name(), "/root") {
			noDeviceForUsers(t)
			return
		}
		disk := loopdev.New(t, 1<<20)
		base, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("crash", base, "tmpfs", 0, "size=64m"); err != nil {
			t.Fatal(err)
		}
		points, every := 0, 1
		if testtool.Shortened() {
			every = 19
		}
		for n := 1; ; n += every {
			killed := false
			for _, next := range []string{"set up", "tear down"} {
				killed = killAroundBlock(t, base, disk.Path, calltrace.Point{N: n, After: next == "set up"}, next)
			}
			if !killed || t.Failed() {
				break
			}
			points++
		}
		if points < 20/every {
			t.Errorf("the scenario has only %d system calls that change something", points*every)
		}
	})
}

func killAroundBlock(t *testing.T, base, disk string, at calltrace.Point, next string) (killed bool) {
	t.Helper()
	dir, err := os.MkdirTemp(base, "")
	if err != nil {
		t.Fatal(err)
	}
	environment := []string{blockCrashDirVar + "=" + dir, blockCrashDiskVar + "=" + disk}
	killed, call := calltrace.Process{Args: []string{"-test.run=^TestBlockCrashScenario$", "-test.timeout=5m"}, Env: environment}.RunUntil(t, at, calltrace.ChangesBelow(filepath.Join(dir, "root")))
	t.Run(at.String()+" then "+next, func(t *testing.T) {
		w := blockWorldAt(t, dir, disk)
		manager, stop := w.start()
		pod := blockPod("web", "data")
		if next == "set up" {
			mustSetUp(t, manager, pod)
		}
		mustTearDown(t, manager, pod)
		stop()
		w.assertNoDevice()
		if t.Failed() {
			t.Logf("killed at %s", call)
		}
	})
	return killed
}

// A local volume whose path is a blank device: it is formatted and mounted once,
// and bound into each pod; the last pod takes it with it, also after a restart.
func TestKernelLocalFileSystemOfADevice(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if !strings.HasSuffix(t.Name(), "/root") {
			noDeviceForUsers(t)
			return
		}
		testtool.Need(t, "mkfs.ext4") // what is said without it is tested with the plugin
		disk := loopdev.New(t, 32<<20)
		w := blockWorld(t, disk.Path)
		claim, pv := boundPair("files", "pv-files")
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: disk.Path}}
		w.add(claim, pv)
		manager, stop := w.start()
		one, two := newPod("one", claimVolume("v", "files", false)), newPod("two", claimVolume("v", "files", false))
		mustSetUp(t, manager, one, two)
		stop()
		manager, _ = w.start()
		first, err := manager.SetUpPod(t.Context(), one)
		if err != nil {
			t.Fatal(err)
		}
		second, err := manager.SetUpPod(t.Context(), two)
		if err != nil {
			t.Fatal(err)
		}
		write, _ := first.Path("v")
		read, _ := second.Path("v")
		if err := os.WriteFile(filepath.Join(write, "file"), []byte("shared"), 0o600); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(filepath.Join(read, "file")); string(text) != "shared" || err != nil {
			t.Errorf("the other pod reads %q, %v", text, err)
		}
		place := filepath.Join(w.root, "plugins/kubernetes.io/local-volume/mounts/pv-files")
		mounted := func() bool {
			t.Helper()
			points, err := w.mounter.List()
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(points, func(p mount.MountPoint) bool { return p.Path == place })
		}
		mustTearDown(t, manager, one)
		if !mounted() {
			t.Error("the device is unmounted under a pod")
		}
		mustTearDown(t, manager, two)
		if _, err := os.Lstat(place); mounted() || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the device's mount point is left (%v)", err)
		}
		w.assertClean()
	})
}
