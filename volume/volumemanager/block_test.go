package volumemanager_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/volumemanager"
)

func TestBlockVolumes(t *testing.T) {
	w := newWorld(t)
	d, h := w.withBlockDisks()
	manager, _ := w.start()
	one, two := blockPod("one", "a"), blockPod("two", "a", "b")
	mustSetUp(t, manager, one)
	want := []string{"SetUpDevice pv-a", "MapPodDevice uid-one", "bind uid-one", "Hold uid-one"}
	if diff := cmpDiff(want, d.log()); diff != "" {
		t.Error(diff)
	}
	mustSetUp(t, manager, two)
	if n := d.count("SetUpDevice pv-a"); n != 0 {
		t.Errorf("the device is set up %d times more for another pod", n)
	}
	w.assertMapped(d, h, "one", "a")
	w.assertMapped(d, h, "two", "a")
	w.assertMapped(d, h, "two", "b")
	d.log()
	mustSetUp(t, manager, one)
	if diff := cmpDiff([]string{"MapPodDevice uid-one", "Hold uid-one"}, d.log()); diff != "" {
		t.Errorf("again:\n%s", diff)
	}
	mustTearDown(t, manager, one)
	want = []string{"Release uid-one", "unbind uid-one", "UnmapPodDevice uid-one"}
	if diff := cmpDiff(want, d.log()); diff != "" {
		t.Error(diff)
	}
	w.assertMapped(d, h, "two", "a")
	mustTearDown(t, manager, two)
	if d.count("TearDownDevice pv-a") != 1 || d.count("TearDownDevice pv-b") != 1 {
		t.Errorf("calls %q", d.log())
	}
	w.assertNoBlocks(d, h)
}

func TestBlockVolumeStatus(t *testing.T) {
	w := newWorld(t)
	d, _ := w.withBlockDisks()
	manager, stop := w.start()
	result, err := manager.SetUpPod(t.Context(), blockPod("web", "a"))
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(w.root, "pods/uid-web/volumeDevices/example.com~disk/pv-a")
	if path, ok := result.Path("v-a"); !ok || path != link {
		t.Errorf("Path = %q, %v", path, ok)
	}
	check := func(row volumemanager.VolumeStatus) {
		t.Helper()
		text, err := json.Marshal(row)
		if row.State != volumemanager.StateMounted || row.Path != link || row.Device != d.node("a") || err != nil ||
			!strings.Contains(string(text), fmt.Sprintf(`"device":%q`, d.node("a"))) {
			t.Errorf("%+v\n%s, %v", row, text, err)
		}
	}
	check(result.Volumes[0])
	stop()
	rows, err := volumemanager.Inspect(w.root, w.fake.Table())
	if err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}
	check(rows[0])
}

func TestAttachableBlockVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d, h := w.withBlockDisks()
		d.attaches = true
		d.published = func(string) string { return "" } // then it is the attached device
		manager, stop := w.start()
		defer stop()
		pod := blockPod("web", "a")
		declare(t, manager, pod)
		if calls := d.log(); len(calls) != 0 || len(manager.VolumesInUse()) != 1 {
			t.Errorf("before it is attached: %q, in use %v", calls, manager.VolumesInUse())
		}
		attached := filepath.Join(d.dev, "attached")
		if err := os.Symlink(d.node("a"), attached+"-part1"); err != nil {
			t.Fatal(err)
		}
		manager.ReportedInUse(manager.VolumesInUse())
		manager.SetVolumesAttached([]v1.AttachedVolume{{Name: diskPlugin + "/a", DevicePath: attached}})
		if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		if diff := cmpDiff([]string{"WaitForAttach a", "SetUpDevice pv-a", "MapPodDevice uid-web", "bind uid-web", "Hold uid-web"}, d.log()); diff != "" {
			t.Error(diff)
		}
		w.assertMapped(d, h, "web", "a")
		mustTearDown(t, manager, pod)
		if names := manager.VolumesInUse(); len(names) != 0 {
			t.Errorf("still in use: %v", names)
		}
		w.assertNoBlocks(d, h)
	})
}

func TestFailedBlockVolumes(t *testing.T) {
	refused := errors.New("no such disk")
	for step, want := range map[string]string{
		"SetUpDevice":  "MapVolume.SetUpDevice failed",
		"MapPodDevice": "MapVolume.MapPodDevice failed",
		"bind":         "MapVolume.MapBlockVolume failed",
		"Hold":         "MapVolume.MapBlockVolume failed",
	} {
		t.Run(step, func(t *testing.T) {
			// In real time it is tried again meanwhile, and fails again.
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				d, h := w.withBlockDisks()
				manager, _ := w.start()
				remove := d.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall(step), Err: refused})
				pod := blockPod("web", "a")
				if _, err := manager.SetUpPod(t.Context(), pod); !errors.Is(err, refused) {
					t.Errorf("err = %v", err)
				}
				if got := w.events.all(); len(got) != 1 || !strings.HasPrefix(got[0], "web Warning FailedMapVolume "+want+` for volume "pv-a" : `) {
					t.Errorf("events = %q", got)
				}
				remove()
				mustTearDown(t, manager, pod)
				w.assertNoBlocks(d, h)
			})
		})
	}
}

func TestVolumeModesThatDoNotFit(t *testing.T) {
	for name, tc := range map[string]struct {
		volume v1.Volume
		use    func(c *v1.Container)
		want   []string
	}{
		"a device that is mounted": {claimVolume("v", "a", false),
			func(c *v1.Container) { c.VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/data"}} },
			[]string{`volumeMounts[0] of container "c"`, `volume "v"`, "volumeDevices"}},
		"a claim's file system as a device": {claimVolume("v", "files", false),
			func(c *v1.Container) { c.VolumeDevices = []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/x"}} },
			[]string{`volumeDevices[0] of container "c"`, `volume "v"`, "volumeMounts"}},
		"an emptyDir as a device": {emptyDirVolume("v", ""),
			func(c *v1.Container) { c.VolumeDevices = []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/x"}} },
			[]string{`spec.containers[0].volumeDevices[0]`, `volume "v"`, "volumeMounts"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			d, _ := w.withBlockDisks()
			claim, pv := boundPair("files", "pv-files")
			w.add(claim, pv)
			manager, _ := w.start()
			pod := newPod("web", tc.volume)
			pod.Spec.Containers[0].VolumeMounts = nil
			tc.use(&pod.Spec.Containers[0])
			_, err := manager.SetUpPod(t.Context(), pod)
			if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok {
				t.Errorf("err = %v", err)
			}
			for _, part := range tc.want {
				if !strings.Contains(fmt.Sprint(err), part) {
					t.Errorf("%v does not say %s", err, part)
				}
			}
			if calls := d.log(); len(calls) > 0 {
				t.Errorf("calls %q", calls)
			}
			w.untouched()
		})
	}
}

func TestBlockVolumeOfAPluginWithoutDevices(t *testing.T) {
	w := newWorld(t)
	claim, pv := boundPair("data", "pv-nfs")
	claim.Spec.VolumeMode, pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock), new(v1.PersistentVolumeBlock)
	w.add(claim, pv)
	manager, _ := w.start()
	_, err := manager.SetUpPod(t.Context(), blockPod("web", "data"))
	if e, ok := errors.AsType[*volume.UnsupportedError](err); !ok || e.Volume != "pv-nfs" {
		t.Errorf("err = %v", err)
	}
	w.untouched()
}

// An unmount that says that nothing is mounted, while the table shows a mount,
// is an error and not a reason to try again at once.
func TestUnbindingThatChangesNothing(t *testing.T) {
	// In real time it is tried again meanwhile.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d, h := w.withBlockDisks()
		manager, _ := w.start()
		pod := blockPod("web", "a")
		mustSetUp(t, manager, pod)
		calls := 0
		var remove func()
		remove = w.fake.Inject(fakemount.Fault{Err: mount.ErrNotMounted,
			Match: func(c fakemount.Call) bool { return !isMount(c) },
			Hook: func() {
				if calls++; calls == 100 {
					remove()
				}
			}})
		if err := manager.TearDownPod(t.Context(), pod.UID); err == nil || !strings.Contains(err.Error(), "still mounted") {
			t.Errorf("err = %v", err)
		}
		remove()
		if calls > 10 {
			t.Errorf("unmounted %d times", calls)
		}
		mustTearDown(t, manager, pod)
		w.assertNoBlocks(d, h)
	})
}

// A device whose opening blocks holds up nobody but its pod, and whoever owns
// the root next waits until nothing more can come of it.
func TestHoldThatBlocks(t *testing.T) {
	for _, step := range []string{"Hold", "Release"} {
		t.Run(step, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				d, h := w.withBlockDisks()
				w.setUpTimeout = time.Second
				release := make(chan struct{})
				remove := d.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall(step), Release: release})
				manager, stop := w.start()
				pod, other := blockPod("web", "a"), newPod("other", emptyDirVolume("v", ""))
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				_, err := manager.SetUpPod(ctx, pod)
				if step == "Release" {
					err = manager.TearDownPod(ctx, pod.UID)
				}
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("err = %v", err)
				}
				mustSetUp(t, manager, other)
				stop()
				next, err := volumemanager.New(w.config())
				if err != nil {
					t.Fatal(err)
				}
				if err := next.Run(t.Context()); !errors.Is(err, volumemanager.ErrRootBusy) {
					t.Errorf("the next owner: %v", err)
				}
				remove()
				close(release)
				synctest.Wait()
				manager, stop = w.start()
				defer stop()
				mustTearDown(t, manager, pod, other)
				w.assertNoBlocks(d, h)
			})
		})
	}
}

// A pod's link that leads elsewhere is replaced, also after a crash in the middle
// of that.
func TestLinkToAnotherDevice(t *testing.T) {
	w := newWorld(t)
	d, h := w.withBlockDisks()
	manager, _ := w.start()
	pod := blockPod("web", "a")
	mustSetUp(t, manager, pod)
	link := filepath.Join(w.root, "pods/uid-web/volumeDevices/example.com~disk/pv-a")
	leftover := w.binds()[0] + ".link"
	if err := errors.Join(os.Remove(link), os.Symlink("/dev/renamed", link), os.Symlink("/dev/other", leftover)); err != nil {
		t.Fatal(err)
	}
	mustSetUp(t, manager, pod)
	w.assertMapped(d, h, "web", "a")
	if err := os.Symlink("/dev/other", leftover); err != nil {
		t.Errorf("after it was replaced: %v", err)
	}
	mustTearDown(t, manager, pod)
	w.assertNoBlocks(d, h)
}

// What stands where a pod's link should be is somebody's, and stays.
func TestNoLinkAtTheDevicesPlace(t *testing.T) {
	w := newWorld(t)
	d, _ := w.withBlockDisks()
	manager, _ := w.start()
	dir := filepath.Join(w.root, "pods/uid-web/volumeDevices/example.com~disk")
	file := filepath.Join(dir, "pv-a")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(file, []byte("precious"), 0o600)); err != nil {
		t.Fatal(err)
	}
	pod := blockPod("web", "a")
	if _, err := manager.SetUpPod(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "not a link") {
		t.Errorf("SetUpPod = %v", err)
	}
	if err := manager.TearDownPod(t.Context(), pod.UID); err == nil || !strings.Contains(err.Error(), "no link") {
		t.Errorf("TearDownPod = %v", err)
	}
	if text, err := os.ReadFile(file); string(text) != "precious" || err != nil {
		t.Errorf("the file holds %q, %v", text, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	mustTearDown(t, manager, pod)
	_ = d
}

func TestContainerDevices(t *testing.T) {
	w := newWorld(t)
	d, h := w.withBlockDisks()
	claim, pv := blockPair("c", "pv-c")
	claim.Spec.AccessModes, pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}, []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
	w.add(claim, pv)
	if err := os.WriteFile(d.node("c"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	manager, stop := w.start()
	pod := blockPod("web", "a", "b", "c")
	pod.Spec.Volumes[1].PersistentVolumeClaim.ReadOnly = true
	if _, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{}); !errors.Is(err, volumemanager.ErrUnknownPod) {
		t.Errorf("err = %v", err)
	}
	mustSetUp(t, manager, pod)
	stop()
	manager, _ = w.start()
	mustSetUp(t, manager, pod)
	mounts, devices, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
	if err != nil || len(mounts) != 0 {
		t.Fatal(mounts, err)
	}
	dir := filepath.Join(w.root, "pods/uid-web/volumeDevices/example.com~disk")
	want := []containermounts.Device{
		{Volume: "v-a", Source: filepath.Join(dir, "pv-a"), Destination: "/dev/a", Permissions: "rwm"},
		{Volume: "v-b", Source: filepath.Join(dir, "pv-b"), Destination: "/dev/b", Permissions: "r"},
		{Volume: "v-c", Source: filepath.Join(dir, "pv-c"), Destination: "/dev/c", Permissions: "r"},
	}
	if diff := cmp.Diff(want, devices); diff != "" {
		t.Error(diff)
	}
	mustTearDown(t, manager, pod)
	w.assertNoBlocks(d, h)
}

// A device that somebody else has unbound is bound again.
func TestVanishedBlockVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d, h := w.withBlockDisks()
		manager, stop := w.start()
		defer stop()
		pod := blockPod("web", "a")
		mustSetUp(t, manager, pod)
		if err := w.fake.Unmount(w.binds()[0]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		w.assertMapped(d, h, "web", "a")
		mustTearDown(t, manager, pod)
		w.assertNoBlocks(d, h)
	})
}

func TestFsckOfBlockVolumes(t *testing.T) {
	w := newWorld(t)
	d, h := w.withBlockDisks()
	w.leave(blockPod("web", "a", "b"))
	if problems := w.check(false); len(problems) != 0 {
		t.Errorf("of a healthy root: %+v", problems)
	}
	if err := os.RemoveAll(filepath.Join(w.root, "podvol")); err != nil {
		t.Fatal(err)
	}
	noRecord := string(volumemanager.ProblemNoRecord)
	if diff := cmpDiff([]string{noRecord + " (not repaired)", noRecord + " (not repaired)"}, kinds(w.check(false))); diff != "" {
		t.Error(diff)
	}
	link := filepath.Join(w.root, "pods/uid-web/volumeDevices/example.com~disk/pv-b")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	stray := string(volumemanager.ProblemStrayDevice) + " (not repaired)"
	problems := w.check(true)
	if diff := cmpDiff([]string{stray, noRecord}, kinds(problems)); diff != "" {
		t.Error(diff)
	}
	bind := w.binds()[1]
	if p := problems[len(problems)-1]; p.Path != bind || p.PodUID != "uid-web" || !strings.Contains(p.Advice, "losetup -j "+bind) {
		t.Errorf("problem %+v", p)
	}
	if diff := cmpDiff([]string{stray, noRecord}, w.repair(true)); diff != "" {
		t.Error(diff)
	}
	// Its own steps are what the advice says.
	delete(h.held, bind)
	if err := errors.Join(w.fake.Unmount(bind), os.Remove(bind), os.Remove(filepath.Dir(bind))); err != nil {
		t.Fatal(err)
	}
	d.ready["pv-b"] = false
	manager, _ := w.start()
	pod := blockPod("web", "a")
	mustSetUp(t, manager, pod)
	mustTearDown(t, manager, pod)
	w.assertNoBlocks(d, h)
}
