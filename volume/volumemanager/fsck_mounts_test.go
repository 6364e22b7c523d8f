package volumemanager_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager"
)

// A volume whose record cannot be read may be any that is attached.
func TestAVolumeWithAnUnreadableRecordStaysInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.withAttachableDisks()
		manager, stop := w.start()
		n := &node{manager: manager}
		pod := diskPod("web", "a")
		declare(t, manager, pod)
		n.attach("a")
		n.report()
		if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		stop()
		spoilRecord(t, w.recordsPath(), func(string) string { return `{"version":99}` })
		manager, _ = w.start()
		manager.ReportedInUse(inUse("a")) // as the node's status has it
		assertInUse(t, manager, "a")
		assertInUse(t, manager, "a")
		manager.SetVolumesAttached([]v1.AttachedVolume{{Name: unique("a")}, {Name: unique("b")}, {Name: "example.com/other/c"}})
		assertInUse(t, manager, "a", "b")
		problems := w.check(true)
		for _, p := range problems {
			if p.Kind == volumemanager.ProblemStrayDevice && p.Repair != "" {
				t.Errorf("the device of an unreadable record is to be unmounted: %+v", p)
			}
		}
		if len(problems) != 2 {
			t.Errorf("the plan: %v", kinds(problems))
		}
	})
}

func TestFsckOfDeviceMountsWithoutRecord(t *testing.T) {
	w := newWorld(t)
	d := w.withDisks()
	w.leave(diskPod("web", "a"))
	if problems := w.check(true); len(problems) != 0 {
		t.Errorf("of a healthy root: %v", kinds(problems))
	}
	others := filepath.Join(w.root, "plugins/example.com/others/b")
	for _, dir := range []string{d.place("b"), others} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		if err := w.fake.Mount("/dev/"+filepath.Base(filepath.Dir(dir)), dir, "ext4", nil); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"device mount without record (not repaired)", "device mount without record (not repaired)"}
	if diff := cmpDiff(want, w.repair(false)); diff != "" {
		t.Error(diff)
	}
	want[0] = "device mount without record"
	if diff := cmpDiff(want, w.repair(true)); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Lstat(d.place("b")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the device: %v", err)
	}
	for path, want := range map[string]bool{d.place("a"): true, d.place("b"): false, others: true} {
		if _, mounted, err := w.fake.Table().At(path); err != nil || mounted != want {
			t.Errorf("%s mounted: %v, %v", path, mounted, err)
		}
	}
}

// Only a volume's plugin knows where its device is: fsck says which one it lacks.
func TestFsckOfDeviceMountsWithoutThePlugin(t *testing.T) {
	w := newWorld(t)
	d := w.withDisks()
	w.leave(diskPod("web", "a"))
	w.plugins = besides()
	problems := w.check(true)
	if len(problems) != 1 {
		t.Fatalf("the plan: %v", kinds(problems))
	}
	p := problems[0]
	if p.Kind != volumemanager.ProblemStrayDevice || p.Path != d.place("a") || p.Repair != "" || !errors.Is(p.Err, volume.ErrNoPlugin) ||
		!strings.Contains(p.Err.Error(), "perhaps for volume v-a of pod") || p.Advice != "Register the plugin "+diskPlugin+", and check again." {
		t.Errorf("%+v", p)
	}
}

func TestFsckOfSubPathsWithoutVolume(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.mounter = host.New(host.Config{Via: host.ViaSystemCalls})
		manager, stop := w.start()
		pod := mounting(newPod("web", emptyDirVolume("ram", v1.StorageMediumMemory), emptyDirVolume("disk", "")), v1.VolumeMount{Name: "ram", MountPath: "/d", SubPath: "a"})
		setUp(t, manager, pod)
		containerMounts(t, manager, pod)
		stop()
		if problems := w.check(true); len(problems) != 0 {
			t.Errorf("of a healthy root: %+v", problems)
		}
		// A volume of this pod that is gone, and one of a pod that nobody knows.
		bind := func(pod string) string {
			point := filepath.Join(w.root, "pods", pod, "volume-subpaths/lost/c/0")
			if err := os.MkdirAll(point, 0o750); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount(t.TempDir(), point, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			return point
		}
		bind("uid-web")
		bind("uid-unknown")
		want := []string{"sub-path without volume", "sub-path without volume (not repaired)"}
		if diff := cmpDiff(want, w.repair(false)); diff != "" {
			t.Error(diff)
		}
		if diff := cmpDiff([]string{"sub-path without volume"}, w.repair(true)); diff != "" {
			t.Error(diff)
		}
		if problems := w.check(true); len(problems) != 0 {
			t.Errorf("after the repair: %+v", problems)
		}
		for _, gone := range []string{"uid-unknown", "uid-web/volume-subpaths/lost"} {
			if _, err := os.Lstat(filepath.Join(w.root, "pods", gone)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("pods/%s: %v", gone, err)
			}
		}
		manager, _ = w.start()
		tearDown(t, manager, pod)
		w.assertClean()
	})
}

// Records that cannot be read may explain anything.
func TestFsckUnmountsNothingForWantOfARecordThatItCannotRead(t *testing.T) {
	w := newWorld(t)
	w.leave(newPod("web", nfsVolume("v", "10.0.0.1")))
	spoilRecord(t, w.recordsPath(), func(v string) string { return strings.Replace(v, `"version":`, `"version":9`, 1) })
	point := filepath.Join(w.root, "pods/uid-web/volume-subpaths/lost/c/0")
	if err := os.MkdirAll(point, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := w.fake.Mount("x", point, "tmpfs", nil); err != nil {
		t.Fatal(err)
	}
	want := []string{"sub-path without volume (not repaired)", "unreadable record (not repaired)"}
	if diff := cmpDiff(want, w.repair(true)); diff != "" {
		t.Error(diff)
	}
	problems := w.check(true)
	if !errors.Is(errors.Join(problems[0].Err, problems[1].Err), mountrecord.ErrNewer) {
		t.Errorf("problems %+v", problems)
	}
}

// A volume may have any name, also that of the directory that volumes are in.
func TestAVolumeCalledVolumesIsNoStrayMount(t *testing.T) {
	w := newWorld(t)
	w.leave(newPod("web", nfsVolume("volumes", answering)))
	if problems := w.check(false); len(problems) != 0 {
		t.Errorf("problems: %+v", problems)
	}
}
