package volumemanager_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

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
		"by its own":    {&volume.Error{Op: "MountDevice", Volume: "v-a", Err: refused}, 1},
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
				if !errors.Is(err, refused) || !errors.As(err, &own) || own.Op != "MountDevice" || own.Volume != "v-a" || own.Pod.Name != "web" || strings.Count(err.Error(), "MountDevice") != 1 {
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
			// In real time the pod whose mount is refused may be the next to have the device.
			synctest.Test(t, func(t *testing.T) {
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
