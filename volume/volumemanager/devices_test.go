package volumemanager_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
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

// The process dies before or after any step; the next one finishes either way,
// and so does the same one when it was only an error.
func TestCrashAroundADevice(t *testing.T) {
	died := errors.New("the process died")
	for _, step := range []string{"MountDevice", "SetUp", "TearDown", "UnmountDevice"} {
		for _, after := range []bool{false, true} {
			for _, shared := range []bool{false, true} {
				for _, finish := range []string{"set up", "tear down"} {
					for _, crash := range []bool{false, true} {
						name := fmt.Sprintf("%s after=%v shared=%v then %s crash=%v", step, after, shared, finish, crash)
						t.Run(name, func(t *testing.T) {
							w := newWorld(t)
							d := w.withDisks()
							manager, stop := w.start()
							pod, other := diskPod("web", "a"), diskPod("other", "a")
							if shared {
								mustSetUp(t, manager, other)
							}
							dead := false
							remove := d.calls.Inject(
								fault.Fault[diskCall]{Match: func(diskCall) bool { return dead }, Err: died}, // the dead clean nothing up
								fault.Fault[diskCall]{Match: isDiskCall(step), After: after, Err: died, Hook: func() { dead = true }},
							)
							_, _ = manager.SetUpPod(t.Context(), pod)
							_ = manager.TearDownPod(t.Context(), pod.UID)
							remove()
							if crash {
								stop()
								manager, _ = w.start()
							}
							if finish == "set up" {
								mustSetUp(t, manager, pod)
								if diff := cmpDiff([]string{"a"}, w.mountedDevices()); diff != "" {
									t.Error(diff)
								}
							}
							mustTearDown(t, manager, pod)
							if shared {
								if diff := cmpDiff([]string{"a"}, w.mountedDevices()); diff != "" {
									t.Error(diff)
								}
								mustTearDown(t, manager, other)
							}
							w.assertNoDevices()
						})
					}
				}
			}
		}
	}
}

// A device that hangs delays its own pods only, and these can still be told to
// go.
func TestHungDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.setUpTimeout = 30 * time.Second
		d := w.withDisks()
		manager, stop := w.start()
		release := make(chan struct{})
		ignoresItsContext := func() { <-release }
		d.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("MountDevice a"), Nth: 1, Hook: ignoresItsContext})
		hung, waits, well := diskPod("hung", "a"), diskPod("waits", "a"), diskPod("well", "b")
		for _, pod := range []*v1.Pod{hung, waits, well} {
			if err := manager.PutPod(pod); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the first one has the device
		}
		began := time.Now()
		if err := manager.WaitForMounted(t.Context(), well.UID); err != nil || time.Since(began) > 0 {
			t.Errorf("the pod of another device is ready after %s: %v", time.Since(began), err)
		}
		time.Sleep(31 * time.Second)
		synctest.Wait()
		for _, row := range manager.Explain() {
			switch row.Pod.Name {
			case "hung":
				if row.Operation != "set-up" {
					t.Errorf("the hung one: %+v", row)
				}
			case "waits":
				if row.State != volumemanager.StateFailed || !strings.Contains(fmt.Sprint(row.Err), "another operation on the device of example.com/disk/a has not ended") || row.Failures != 1 {
					t.Errorf("the one that waits: %+v", row)
				}
			}
		}
		mustTearDown(t, manager, waits)
		close(release)
		if err := manager.WaitForMounted(t.Context(), hung.UID); err != nil {
			t.Error(err)
		}
		mustTearDown(t, manager, hung, well)
		w.assertNoDevices()
		stop()
	})
}

func TestDeviceThatCannotBeMounted(t *testing.T) {
	refused := errors.New("no such disk")
	for name, tc := range map[string]struct {
		err     error
		records int
	}{
		"for certain":   {volume.NothingDone(refused), 0},
		"or perhaps it": {refused, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				d := w.withDisks()
				manager, stop := w.start()
				remove := d.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("MountDevice a"), Err: tc.err})
				pod := diskPod("web", "a")
				_, err := manager.SetUpPod(t.Context(), pod)
				var own *volume.Error
				if !errors.Is(err, refused) || !errors.As(err, &own) || own.Op != "MountDevice" || own.Volume != "v-a" || own.Pod.Name != "web" {
					t.Errorf("err = %v", err)
				}
				if got := w.events.all(); len(got) != 1 || !strings.HasPrefix(got[0], `web Warning FailedMount MountVolume.MountDevice failed for volume "v-a" : `) {
					t.Errorf("events = %q", got)
				}
				if n := len(w.records()); n != tc.records {
					t.Errorf("%d records, want %d", n, tc.records)
				}
				remove()
				if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil {
					t.Fatal(err)
				}
				mustTearDown(t, manager, pod)
				w.assertNoDevices()
				stop()
			})
		})
	}
}

// A pod whose own mount is refused keeps its record for the device's sake,
// unless another pod has the device too.
func TestRefusedSetUpAfterTheDevice(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprint("shared ", shared), func(t *testing.T) {
			w := newWorld(t)
			d := w.withDisks()
			manager, stop := w.start()
			other := diskPod("other", "a")
			want := 1
			if shared {
				mustSetUp(t, manager, other)
			}
			d.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("SetUp uid-web"), Err: volume.NothingDone(errors.New("read-only"))})
			pod := diskPod("web", "a")
			if _, err := manager.SetUpPod(t.Context(), pod); err == nil {
				t.Fatal("set up")
			}
			if n := len(w.records()); n != want {
				t.Errorf("%d records, want %d", n, want)
			}
			if shared {
				mustTearDown(t, manager, other)
				if n := len(w.mountedDevices()); n != 0 {
					t.Errorf("%d devices are mounted for a pod that has nothing", n)
				}
			} else {
				stop()
				manager, _ = w.start()
			}
			mustTearDown(t, manager, pod)
			w.assertNoDevices()
		})
	}
}

// A device that cannot be unmounted keeps the record of the last one, and goes
// with the next attempt.
func TestDeviceThatCannotBeUnmounted(t *testing.T) {
	w := newWorld(t)
	d := w.withDisks()
	manager, _ := w.start()
	pod := diskPod("web", "a")
	mustSetUp(t, manager, pod)
	busy := errors.New("device is busy")
	remove := d.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("UnmountDevice"), Err: busy})
	if err := manager.TearDownPod(t.Context(), pod.UID); !errors.Is(err, busy) || !strings.Contains(err.Error(), `UnmountDevice of volume "v-a"`) {
		t.Errorf("err = %v", err)
	}
	if n := len(w.records()); n != 1 {
		t.Errorf("%d records", n)
	}
	remove()
	mustTearDown(t, manager, pod)
	w.assertNoDevices()
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

// A pod that is told to go while its device hangs leaves nothing behind.
func TestPodGoesWhileItsDeviceHangs(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprint("after its effect ", after), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				d := w.withDisks()
				manager, stop := w.start()
				defer stop()
				remove := d.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("MountDevice"), After: after, Release: make(chan struct{})})
				pod, other := diskPod("web", "a"), diskPod("other", "a")
				for _, p := range []*v1.Pod{pod, other} {
					if err := manager.PutPod(p); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				began := time.Now()
				mustTearDown(t, manager, pod, other)
				if time.Since(began) > 0 {
					t.Errorf("it took %s", time.Since(began))
				}
				remove()
				w.assertNoDevices()
			})
		})
	}
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
