package volumemanager_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/volumemanager"
)

// A sub-path that stays busy is detached by the ladder, and the volume stays
// until its file system is gone.
func TestBusySubPathIsDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, _ := w.start()
		pod := mounting(newPod("web", nfsVolume("v", answering)), v1.VolumeMount{Name: "v", MountPath: "/v", SubPath: "x"})
		setUp(t, manager, pod)
		done, err := w.fake.Use(containerMounts(t, manager, pod)[0].Source)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		err = manager.TearDownPod(t.Context(), pod.UID)
		if detached, ok := errors.AsType[*lazyunmount.Error](err); !ok || !detached.InUse() || time.Since(start) != time.Minute {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if entries, err := w.fake.Table().BySource(answering + ":/nfs"); err != nil || len(entries) > 0 || len(w.records()) != 1 {
			t.Errorf("%v, %v, records %v", entries, err, w.records())
		}
		done()
		if err := manager.WaitForUnmounted(t.Context(), pod.UID); err != nil {
			t.Error(err)
		}
		w.assertClean()
	})
}

// What was detached is not forgotten when something else fails after it, in this
// manager or the next one.
func TestDetachedSubPathOfAVolumeThatStays(t *testing.T) {
	for name, restarts := range map[string]bool{"retried": false, "restarted": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				manager, stop := w.start()
				pod := mounting(newPod("web", nfsVolume("v", answering)), v1.VolumeMount{Name: "v", MountPath: "/v", SubPath: "x"})
				setUp(t, manager, pod)
				done, err := w.fake.Use(containerMounts(t, manager, pod)[0].Source)
				if err != nil {
					t.Fatal(err)
				}
				refused := errors.New("injected")
				dir := w.volumeDir("web", "nfs", "v")
				remove := w.fake.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return !isMount(c) && c.Target == dir }, Err: refused})
				err = manager.TearDownPod(t.Context(), pod.UID)
				if detached, ok := errors.AsType[*lazyunmount.Error](err); !ok || !detached.InUse() || !errors.Is(err, refused) {
					t.Errorf("err = %v", err)
				}
				if restarts {
					stop()
					manager, _ = w.start()
					if err := manager.TearDownPod(t.Context(), pod.UID); !errors.Is(err, refused) || !errors.As(err, new(*lazyunmount.Error)) {
						t.Errorf("after a restart: %v", err)
					}
				}
				remove()
				time.Sleep(time.Hour)
				if entries, err := w.fake.Table().BySource(answering + ":/nfs"); err != nil || len(entries) > 0 || len(w.records()) != 1 {
					t.Errorf("%v, %v, records %v", entries, err, w.records())
				}
				for _, row := range manager.Explain() {
					if row.State != volumemanager.StateDetached {
						t.Errorf("status %+v", row)
					}
				}
				done()
				if err := manager.WaitForUnmounted(t.Context(), pod.UID); err != nil {
					t.Error(err)
				}
				w.assertClean()
			})
		})
	}
}

// A sub-path on a disk is never detached: it is tried again, and the error names
// what is busy.
func TestBusySubPathOfADisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, _ := w.start()
		pod := mounting(newPod("web", emptyDirVolume("v", "")), v1.VolumeMount{Name: "v", MountPath: "/v", SubPath: "x"})
		setUp(t, manager, pod)
		source := containerMounts(t, manager, pod)[0].Source
		done, err := w.fake.Use(source)
		if err != nil {
			t.Fatal(err)
		}
		if err := manager.TearDownPod(t.Context(), pod.UID); !errors.Is(err, mount.ErrBusy) || !strings.Contains(err.Error(), source) {
			t.Errorf("err = %v", err)
		}
		done()
		if err := manager.WaitForUnmounted(t.Context(), pod.UID); err != nil {
			t.Error(err)
		}
		w.assertClean()
	})
}
