package volumemanager_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume/volumemanager"
)

// A pod's object may go when its own mounts are gone. Its device goes on being unmounted, and
// is shown, in use and on record until then. [volumemanager.Manager.TearDownPod] waits for it.
func TestPodIsLetGoBeforeItsDeviceIsUnmounted(t *testing.T) {
	for _, restart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorldIn(t, t.TempDir())
			d := w.withAttachableDisks()
			c := &containers{gone: map[types.UID]bool{}}
			w.containers = c
			manager, stop := w.start()
			n := &node{manager: manager}
			pod := diskPod("web", "a")
			declare(t, manager, pod)
			n.report()
			n.attach("a")
			must(t, manager.WaitForMounted(t.Context(), pod.UID))
			remove := d.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("UnmountDevice"), Err: errors.New("the driver refuses")})
			d.log()

			manager.DeletePod(pod.UID)
			if err := manager.WaitForUnpublished(ended(t), pod.UID); !errors.Is(err, errPatience) || !strings.Contains(err.Error(), "its containers to be gone") {
				t.Errorf("WaitForUnpublished: %v", err)
			}
			c.end(pod.UID)
			must(t, manager.WaitForUnpublished(t.Context(), pod.UID))
			synctest.Wait()
			if dirs, err := os.ReadDir(filepath.Join(w.root, "pods")); err != nil || len(dirs) != 0 {
				t.Errorf("below pods: %v, %v", dirs, err)
			}
			if err := manager.WaitForUnmounted(ended(t), pod.UID); err == nil || !strings.Contains(err.Error(), "the driver refuses") {
				t.Errorf("WaitForUnmounted: %v", err)
			}
			if err := manager.TearDownPod(t.Context(), pod.UID); err == nil || !strings.Contains(err.Error(), "the driver refuses") {
				t.Errorf("TearDownPod: %v", err)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if r := rowOf(t, manager, "web"); r.State != volumemanager.StateFailed || r.NextRetry.IsZero() || r.Failures < 10 {
				t.Errorf("its row: %+v", r)
			}
			assertInUse(t, manager, "a")
			if len(w.records()) != 1 {
				t.Errorf("records: %v", w.records())
			}
			if n := d.count("TearDown uid-web"); n != 1 {
				t.Errorf("the volume was taken from its pod %d times", n)
			}
			if restart {
				stop()
				manager, stop = w.start()
				manager.PodsComplete()
				synctest.Wait()
			}
			remove()
			must(t, manager.WaitForUnmounted(t.Context(), pod.UID))
			assertInUse(t, manager)
			w.assertNoDevices()
			stop()
			must(t, w.fake.Close())
		})
	}
}

// A pod that comes while a device is being unmounted, or after that has failed, has it mounted
// anew before it is bound to it, and so has the same pod that is declared again.
func TestPodComesWhileADeviceIsUnmounted(t *testing.T) {
	for name, next := range map[string]string{"another pod": "two", "the same pod": "one"} {
		for _, failed := range []error{nil, errors.New("too late")} {
			for _, waits := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					w := newWorldIn(t, t.TempDir())
					d := w.withDisks()
					manager, stop := w.start()
					one, two := diskPod("one", "a"), diskPod(next, "a")
					mustSetUp(t, manager, one)
					d.log()
					release := make(chan struct{})
					d.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("UnmountDevice"), Nth: 1, Hook: func() { <-release }, After: failed != nil, Err: failed})
					down := make(chan error, 1)
					go func() { down <- manager.TearDownPod(t.Context(), one.UID) }()
					synctest.Wait()
					if waits {
						declare(t, manager, two) // while it is under way
					}
					close(release)
					if err := <-down; failed == nil && !waits && err != nil {
						t.Errorf("%s: TearDownPod: %v", name, err)
					}
					if !waits {
						declare(t, manager, two)
					}
					must(t, manager.WaitForMounted(t.Context(), two.UID))
					time.Sleep(time.Hour)
					synctest.Wait()
					want := []string{"TearDown uid-one", "UnmountDevice a", "MountDevice a", "SetUp " + string(two.UID)}
					if diff := cmpDiff(want, d.log()); diff != "" {
						t.Errorf("%s, waits=%v, failed=%v:\n%s", name, waits, failed, diff)
					}
					if rows := manager.Explain(); len(rows) != 1 || rows[0].State != volumemanager.StateMounted {
						t.Errorf("%s, waits=%v, failed=%v: %+v", name, waits, failed, rows)
					}
					mustTearDown(t, manager, two)
					w.assertNoDevices()
					stop()
					must(t, w.fake.Close())
				})
			}
		}
	}
}

// A ReadWriteOncePod volume whose device cannot be unmounted is the next pod's all the same,
// which waits for it or comes later.
func TestReadWriteOncePodWithoutItsPod(t *testing.T) {
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorldIn(t, t.TempDir())
			d := w.withDisks()
			claim, pv := boundPair("once", "pv-once")
			claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
			pv.Spec.AccessModes = claim.Spec.AccessModes
			pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{GCEPersistentDisk: diskSource("a")}
			w.add(claim, pv)
			manager, stop := w.start()
			one, two := newPod("one", claimVolume("d", "once", false)), newPod("two", claimVolume("d", "once", false))
			mustSetUp(t, manager, one)
			if waits {
				declare(t, manager, two)
			}
			remove := d.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("UnmountDevice"), Err: errors.New("the driver refuses")})
			// The pod that waits may have the device before it is to be unmounted.
			if err := manager.TearDownPod(t.Context(), one.UID); err == nil && !waits {
				t.Error("TearDownPod does not say that a device is left")
			}
			if !waits {
				declare(t, manager, two)
			}
			must(t, manager.WaitForMounted(t.Context(), two.UID))
			remove()
			must(t, manager.WaitForUnmounted(t.Context(), one.UID))
			mustTearDown(t, manager, two)
			w.assertNoDevices()
			stop()
			must(t, w.fake.Close())
		})
	}
}
