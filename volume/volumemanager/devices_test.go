package volumemanager_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
)

func TestDeviceIsMountedOnceForAllPods(t *testing.T) {
	w := newWorld(t)
	d := w.withDisks()
	manager, _ := w.start()
	one, two, three := diskPod("one", "a"), diskPod("two", "a"), diskPod("three", "b")
	group := int64(2000)
	one.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	mustSetUp(t, manager, one, two, three)
	if got := d.calls.Calls()[0].Args; got != "fsGroup 2000" {
		t.Errorf("the device mounter got %q", got)
	}
	want := []string{"MountDevice a", "SetUp uid-one", "SetUp uid-two", "MountDevice b", "SetUp uid-three"}
	if diff := cmpDiff(want, d.log()); diff != "" {
		t.Error(diff)
	}
	mustSetUp(t, manager, one)
	if diff := cmpDiff([]string{"SetUp uid-one"}, d.log()); diff != "" {
		t.Errorf("a refresh:\n%s", diff)
	}
	mustTearDown(t, manager, one, three, two)
	want = []string{"TearDown uid-one", "TearDown uid-three", "UnmountDevice b", "TearDown uid-two", "UnmountDevice a"}
	if diff := cmpDiff(want, d.log()); diff != "" {
		t.Error(diff)
	}
	w.assertNoDevices()
	mustSetUp(t, manager, two)
	if diff := cmpDiff([]string{"MountDevice a", "SetUp uid-two"}, d.log()); diff != "" {
		t.Errorf("once more:\n%s", diff)
	}
}

func TestRecordIsThereWhileTheDeviceIs(t *testing.T) {
	w := newWorld(t)
	d := w.withDisks()
	manager, _ := w.start()
	at := map[string]int{}
	d.calls.Inject(fault.Fault[diskCall]{Match: func(c diskCall) bool { at[c.Op] = len(w.records()); return false }})
	pod := diskPod("web", "a")
	mustSetUp(t, manager, pod)
	mustTearDown(t, manager, pod)
	if diff := cmpDiff(map[string]int{"MountDevice": 1, "SetUp": 1, "TearDown": 1, "UnmountDevice": 1}, at); diff != "" {
		t.Error(diff)
	}
	w.assertNoDevices()
}

// A device that somebody has unmounted is mounted again before the next pod is
// bound to it.
func TestDeviceThatWasTakenAwayIsMountedAgain(t *testing.T) {
	w := newWorld(t)
	d := w.withDisks()
	manager, _ := w.start()
	one, two := diskPod("one", "a"), diskPod("two", "a")
	mustSetUp(t, manager, one)
	if err := w.fake.Unmount(d.place("a")); err != nil {
		t.Fatal(err)
	}
	d.log()
	mustSetUp(t, manager, two)
	if diff := cmpDiff([]string{"MountDevice a", "SetUp uid-two"}, d.log()); diff != "" {
		t.Error(diff)
	}
	mustTearDown(t, manager, one, two)
	w.assertNoDevices()
}

// Pods come and go at random; the plugin itself says when one is bound to a
// device that is not there, or a device is unmounted under a pod.
func TestDevicesOfPodsThatComeAndGo(t *testing.T) {
	w := newWorld(t)
	d := w.withDisks()
	manager, _ := w.start()
	remove := d.calls.Inject(
		fault.Fault[diskCall]{Match: func(c diskCall) bool { return rand.IntN(8) == 0 }, Err: errors.New("by chance")},
		fault.Fault[diskCall]{Match: func(c diskCall) bool { return c.Op == "SetUp" && rand.IntN(8) == 0 }, Err: volume.NothingDone(errors.New("refused"))},
		fault.Fault[diskCall]{Match: func(c diskCall) bool { return c.Op == "MountDevice" && rand.IntN(8) == 0 }, Err: volume.NothingDone(errors.New("refused"))},
		fault.Fault[diskCall]{Match: func(c diskCall) bool { return rand.IntN(8) == 0 }, After: true, Err: errors.New("by chance, too late")},
	)
	pods := make([]*v1.Pod, 6)
	for i := range pods {
		pods[i] = diskPod(fmt.Sprint("p", i), "a", "b")
	}
	var all sync.WaitGroup
	for _, pod := range pods {
		all.Go(func() {
			for range 10 {
				_, _ = manager.SetUpPod(t.Context(), pod) // it may fail
				_ = manager.TearDownPod(t.Context(), pod.UID)
			}
		})
	}
	all.Wait()
	remove()
	for _, pod := range pods {
		mustTearDown(t, manager, pod)
	}
	w.assertNoDevices()
	if len(manager.Explain()) != 0 {
		t.Errorf("Explain = %+v", manager.Explain())
	}
}

// Two PersistentVolumes of one disk, each of which has a place of its own.
func TestTwoPlacesOfOneVolume(t *testing.T) {
	w := newWorld(t)
	d := w.withDisks()
	manager, _ := w.start()
	var pods []*v1.Pod
	for _, name := range []string{"one", "two"} {
		claim, pv := boundPair("claim-"+name, "pv-"+name)
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{GCEPersistentDisk: diskSource("a")}
		w.add(claim, pv)
		pods = append(pods, newPod(name, claimVolume("d", "claim-"+name, false)))
	}
	mustSetUp(t, manager, pods...)
	if diff := cmpDiff([]string{"pv-one", "pv-two"}, w.mountedDevices()); diff != "" {
		t.Error(diff)
	}
	mustTearDown(t, manager, pods[0])
	if diff := cmpDiff([]string{"pv-two"}, w.mountedDevices()); diff != "" {
		t.Error(diff)
	}
	mustTearDown(t, manager, pods[1])
	w.assertNoDevices()
	if n := d.count("UnmountDevice pv-two"); n != 1 {
		t.Errorf("%d", n)
	}
}

// Two pods that come at once share one mount, and one that comes while the
// device is being unmounted has it mounted again.
func TestPodsThatMeetAtADevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.withDisks()
		manager, stop := w.start()
		defer stop()
		release := make(chan struct{})
		d.calls.Inject(
			fault.Fault[diskCall]{Match: isDiskCall("MountDevice"), Nth: 1, Release: release},
			fault.Fault[diskCall]{Match: isDiskCall("UnmountDevice"), Nth: 1, Release: release},
		)
		one, two, three := diskPod("one", "a"), diskPod("two", "a"), diskPod("three", "a")
		declare(t, manager, one, two)
		release <- struct{}{}
		for _, pod := range []*v1.Pod{one, two} {
			if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil {
				t.Fatal(err)
			}
		}
		if n := d.count("MountDevice a"); n != 1 {
			t.Errorf("mounted %d times", n)
		}
		mustTearDown(t, manager, one)
		d.log()
		result := make(chan error, 1)
		go func() { result <- manager.TearDownPod(t.Context(), two.UID) }()
		synctest.Wait()
		declare(t, manager, three)
		release <- struct{}{}
		if err := manager.WaitForMounted(t.Context(), three.UID); err != nil {
			t.Fatal(err)
		}
		if err := <-result; err != nil {
			t.Error(err)
		}
		want := []string{"TearDown uid-two", "UnmountDevice a", "MountDevice a", "SetUp uid-three"}
		if diff := cmpDiff(want, d.log()); diff != "" {
			t.Error(diff)
		}
		mustTearDown(t, manager, three)
		w.assertNoDevices()
	})
}
