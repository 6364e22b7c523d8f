package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume/volumemanager"
)

func TestRestartKnowsDevices(t *testing.T) {
	w := newWorld(t)
	d := w.withDisks()
	manager, stop := w.start()
	one, two, three := diskPod("one", "a"), diskPod("two", "a"), diskPod("three", "b")
	mustSetUp(t, manager, one, two, three)
	stop()
	d.log()

	manager, stop = w.start()
	four := diskPod("four", "a")
	mustSetUp(t, manager, one, four)
	if diff := cmpDiff([]string{"SetUp uid-one", "SetUp uid-four"}, d.log()); diff != "" {
		t.Errorf("pods that stay and come:\n%s", diff)
	}
	mustTearDown(t, manager, one, four, three)
	want := []string{"TearDown uid-one", "TearDown uid-four", "TearDown uid-three", "UnmountDevice b"}
	if diff := cmpDiff(want, d.log()); diff != "" {
		t.Errorf("pods that go, while one has not been declared:\n%s", diff)
	}
	stop()
	manager, _ = w.start()
	mustTearDown(t, manager, two)
	if diff := cmpDiff([]string{"TearDown uid-two", "UnmountDevice a"}, d.log()); diff != "" {
		t.Errorf("the last one:\n%s", diff)
	}
	w.assertNoDevices()
}

// After a reboot the mount table is empty, and nothing counts as mounted.
func TestDevicesAfterAReboot(t *testing.T) {
	for _, declared := range []bool{true, false} {
		t.Run(fmt.Sprint("declared ", declared), func(t *testing.T) {
			w := newWorld(t)
			d := w.withDisks()
			manager, stop := w.start()
			pod := diskPod("web", "a")
			mustSetUp(t, manager, pod)
			stop()
			if err := w.fake.Close(); err != nil {
				t.Fatal(err)
			}
			d.log()
			manager, _ = w.start()
			if declared {
				mustSetUp(t, manager, pod)
				if diff := cmpDiff([]string{"MountDevice a", "SetUp uid-web"}, d.log()); diff != "" {
					t.Error(diff)
				}
			}
			mustTearDown(t, manager, pod)
			w.assertNoDevices()
		})
	}
}

// Where a plugin cannot say at the start what a volume needs, it is asked
// again before the volume goes.
func TestRecoveryWithASpeechlessPlugin(t *testing.T) {
	w := newWorld(t)
	d := w.withDisks()
	manager, stop := w.start()
	pod := diskPod("web", "a")
	mustSetUp(t, manager, pod)
	stop()
	unknown := errors.New("the driver is not registered yet")
	d.speechless.Store(&unknown)
	manager, _ = w.start()
	if err := manager.TearDownPod(t.Context(), pod.UID); !errors.Is(err, unknown) {
		t.Errorf("err = %v", err)
	}
	if n := len(w.records()); n != 1 {
		t.Errorf("%d records", n)
	}
	d.speechless.Store(nil)
	mustTearDown(t, manager, pod)
	w.assertNoDevices()
}

// Who repairs a root counts as a manager does.
func TestRepairLeavesSharedDevices(t *testing.T) {
	w := newWorld(t)
	d := w.withDisks()
	manager, stop := w.start()
	good, bad := diskPod("good", "a"), diskPod("bad", "a")
	mustSetUp(t, manager, good)
	died := errors.New("the process died")
	remove := d.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("SetUp"), After: true, Err: died})
	if _, err := manager.SetUpPod(t.Context(), bad); !errors.Is(err, died) {
		t.Fatal(err)
	}
	stop()
	remove()
	d.log()
	if diff := cmpDiff([]string{string(volumemanager.ProblemUnfinished)}, w.repair(false)); diff != "" {
		t.Error(diff)
	}
	if diff := cmpDiff([]string{"TearDown uid-bad"}, d.log()); diff != "" {
		t.Error(diff)
	}
	manager, _ = w.start()
	mustTearDown(t, manager, good)
	w.assertNoDevices()
}

// A device below a root without records is known by the pods that use it, and
// goes with the last one.
func TestAdoptedDevices(t *testing.T) {
	w := newWorld(t)
	d := w.withDisks()
	manager, stop := w.start()
	pod, gone := diskPod("web", "a"), diskPod("gone", "a")
	mustSetUp(t, manager, pod, gone)
	stop()
	if err := os.RemoveAll(filepath.Join(w.root, "podvol")); err != nil {
		t.Fatal(err)
	}
	d.log()
	config := w.config()
	config.Adopt = true
	manager, err := volumemanager.New(config)
	if err != nil {
		t.Fatal(err)
	}
	w.run(manager)
	mustSetUp(t, manager, pod)
	mustTearDown(t, manager, pod)
	if diff := cmpDiff([]string{"SetUp uid-web", "TearDown uid-web"}, d.log()); diff != "" {
		t.Error(diff)
	}
	mustTearDown(t, manager, gone)
	if diff := cmpDiff([]string{"TearDown uid-gone", "UnmountDevice a"}, d.log()); diff != "" {
		t.Error(diff)
	}
	w.assertNoDevices()
}

// An adopted volume is found under its own name; the claim that turns out to
// want it takes its device over.
func TestAdoptedDeviceOfAClaim(t *testing.T) {
	w := newWorld(t)
	d := w.withDisks()
	claim, pv := boundPair("data", "pv-a")
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{GCEPersistentDisk: diskSource("a")}
	w.add(claim, pv)
	manager, stop := w.start()
	pod := newPod("web", claimVolume("d", "data", false))
	mustSetUp(t, manager, pod)
	stop()
	if err := os.RemoveAll(filepath.Join(w.root, "podvol")); err != nil {
		t.Fatal(err)
	}
	config := w.config()
	config.Adopt = true
	manager, err := volumemanager.New(config)
	if err != nil {
		t.Fatal(err)
	}
	w.run(manager)
	mustSetUp(t, manager, pod)
	mustTearDown(t, manager, pod)
	w.assertNoDevices()
	if n := d.count("MountDevice a"); n != 1 {
		t.Errorf("mounted %d times", n)
	}
}

// An adopted volume that is mounted stays so for the claim that turns out to
// want it, before anybody has reported its attachment.
func TestAdoptedVolumeOfAClaimStaysMounted(t *testing.T) {
	w := newWorld(t)
	w.withAttachableDisks()
	claim, pv := boundPair("data", "pv-a")
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{GCEPersistentDisk: diskSource("a")}
	w.add(claim, pv)
	manager, stop := w.start()
	manager.ReportedInUse([]v1.UniqueVolumeName{unique("a")})
	manager.SetVolumesAttached([]v1.AttachedVolume{{Name: unique("a"), DevicePath: "/dev/a"}})
	pod := newPod("web", claimVolume("d", "data", false))
	mustSetUp(t, manager, pod)
	stop()
	if err := os.RemoveAll(filepath.Join(w.root, "podvol")); err != nil {
		t.Fatal(err)
	}
	config := w.config()
	config.Adopt = true
	manager, err := volumemanager.New(config)
	if err != nil {
		t.Fatal(err)
	}
	w.run(manager)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := manager.SetUpPod(ctx, pod); err != nil {
		t.Fatal(err)
	}
	if row := statusOf(t, manager, "web"); row.State != volumemanager.StateMounted {
		t.Errorf("Explain = %+v", row)
	}
	mustTearDown(t, manager, pod)
	w.assertNoDevices()
}
