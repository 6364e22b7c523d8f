package volumemanager_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// A failure is repeated after 500 ms, 1 s, 2 s … 2 m 2 s, and nothing happens
// in between.
func TestBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		remove := w.fake.Inject(fakemount.Fault{Match: isMount, Err: errors.New("refused")})
		start := time.Now()
		var at []time.Duration
		defer manager.Subscribe(func(v volumemanager.VolumeStatus) {
			if v.State == volumemanager.StateFailed && v.Operation == "" {
				at = append(at, time.Since(start))
			}
		})()
		if err := manager.PutPod(newPod("web", nfsVolume("v", "10.0.0.1"))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		want := []time.Duration{0, 500 * time.Millisecond, 1500 * time.Millisecond, 3500 * time.Millisecond, 7500 * time.Millisecond,
			15500 * time.Millisecond, 31500 * time.Millisecond, 63500 * time.Millisecond, 127500 * time.Millisecond, 249500 * time.Millisecond}
		if diff := cmpDiff(want, at); diff != "" {
			t.Errorf("attempts:\n%s", diff)
		}
		row := manager.Explain()[0]
		if row.Failures != len(want) || row.NextRetry.Sub(start) != want[len(want)-1]+2*time.Minute+2*time.Second {
			t.Errorf("%d failures, next retry after %v", row.Failures, row.NextRetry.Sub(start))
		}
		remove()
		// Whoever asks again does not wait for the pause.
		if _, err := manager.SetUpPod(t.Context(), newPod("web", nfsVolume("v", "10.0.0.1"))); err != nil {
			t.Errorf("after the fault has ended: %v", err)
		}
		if row := manager.Explain()[0]; row.Failures != 0 || !row.NextRetry.IsZero() || time.Since(start) != 6*time.Minute {
			t.Errorf("row = %+v at %v", row, time.Since(start))
		}
	})
}

func TestFailuresEndByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		remove := w.fake.Inject(fakemount.Fault{Match: isMount, Err: errors.New("refused")})
		if err := manager.PutPod(newPod("web", nfsVolume("v", "10.0.0.1"))); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := manager.WaitForMounted(short, "uid-web")
		var pending *volumemanager.PendingError
		if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &pending) || !strings.Contains(err.Error(), "refused") || !strings.Contains(err.Error(), "next attempt in 5.5s") {
			t.Errorf("err = %v", err)
		}
		remove()
		if err := manager.WaitForMounted(t.Context(), "uid-web"); err != nil {
			t.Error(err)
		}
		remove = w.fake.Inject(fakemount.Fault{Match: isUnmount, Err: errors.New("busy")})
		if err := manager.TearDownPod(t.Context(), "uid-web"); err == nil {
			t.Error("the failed tear-down is not reported")
		}
		remove()
		if err := manager.WaitForUnmounted(t.Context(), "uid-web"); err != nil {
			t.Error(err)
		}
		w.assertClean()
	})
}

// A refresh that fails leaves the volume mounted, and says so.
func TestFailedRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		settings := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "settings"}, Data: map[string]string{"a": "1"}}
		w.add(settings)
		manager, stop := w.start()
		defer stop()
		if _, err := manager.SetUpPod(t.Context(), newPod("web", configMapVolume("c", "settings"))); err != nil {
			t.Fatal(err)
		}
		if err := w.store.Delete(t.Context(), volume.NewObjectRef("ConfigMap", "ops-test", "settings"), noPreconditions()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if row := manager.Explain()[0]; row.State != volumemanager.StateMounted || !errors.Is(row.Err, volume.ErrNotFound) {
			t.Errorf("row = %+v", row)
		}
		if got := w.file("web", "configmap", "c", "a"); got != "1" {
			t.Errorf("the volume shows %q", got)
		}
		w.add(settings)
		synctest.Wait()
		if row := manager.Explain()[0]; row.State != volumemanager.StateMounted || row.Err != nil {
			t.Errorf("row = %+v", row)
		}
	})
}

// A pod that is deleted while its mount hangs does not wait for the server.
func TestDeletionEndsAHungSetUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		w.fake.Inject(fakemount.Fault{Match: isMount, Release: make(chan struct{}), Nth: 1})
		if err := manager.PutPod(newPod("web", nfsVolume("v", "10.0.0.1"))); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if row := manager.Explain()[0]; row.Operation != "set-up" || row.Began.IsZero() {
			t.Errorf("row = %+v", row)
		}
		start := time.Now()
		if err := manager.TearDownPod(t.Context(), "uid-web"); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("took %v", took)
		}
		w.assertClean()
		if events := w.events.all(); len(events) != 0 {
			t.Errorf("events of a set-up that nobody wants: %v", events)
		}
	})
}

// A hung attempt ends by itself and is repeated, at one thread for the volume.
func TestHungSetUpIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		w.fake.Inject(fakemount.Fault{Match: isMount, Release: make(chan struct{}), Nth: 1})
		start := time.Now()
		if err := manager.PutPod(newPod("web", nfsVolume("v", "10.0.0.1"))); err != nil {
			t.Fatal(err)
		}
		if err := manager.WaitForMounted(t.Context(), "uid-web"); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took < 2*time.Minute || took > 3*time.Minute {
			t.Errorf("took %v", took)
		}
	})
}
