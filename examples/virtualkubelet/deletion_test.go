package main

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// A pod that is deleted before the API server has its Running status gets its grace
// period all the same, and its object stays until its process has ended.
func TestDeletedBeforeItsStatusWasStored(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		w := newWorld(t, nil, false)
		dir := t.TempDir()
		web := pod("web", `trap 'until test -e `+dir+`/may-end; do sleep 0.05; done; echo bye >`+dir+`/last; exit 0' TERM; echo up; while :; do sleep 0.05; done`, memoryVolume("memory"))
		web.Spec.TerminationGracePeriodSeconds = new(int64(60))
		w.create(web)
		var refusing atomic.Bool
		refusing.Store(true)
		refused := make(chan struct{}, 1)
		w.api.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if !refusing.Load() {
				return false, nil, nil
			}
			select {
			case refused <- struct{}{}:
			default:
			}
			return true, nil, apierrors.NewInternalError(errors.New("no status is stored now"))
		})
		w.start()
		w.eventually("it is up", func() bool { return w.output(web) == "up\n" })
		<-refused
		if phase := w.get(web).Status.Phase; phase != "" {
			t.Errorf("its phase was stored: %s", phase)
		}
		w.delete(web)
		refusing.Store(false)
		w.eventually("its status is stored", func() bool { p := w.get(web); return p != nil && p.Status.Phase == v1.PodRunning })
		if err := os.WriteFile(filepath.Join(dir, "may-end"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		w.gone(web)
		if last, err := os.ReadFile(filepath.Join(dir, "last")); err != nil || string(last) != "bye\n" {
			t.Errorf("it was not asked to end: %q, %v", last, err)
		}
		w.stop()
	})
}

// Of a pod that vanished while the node was away nothing stays: neither its volumes, nor
// what it has printed. The events say nothing of a failure.
func TestVanishedPodLeavesNothing(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		w := newWorld(t, nil, false)
		web := pod("web", `echo up; sleep 1000`, memoryVolume("memory"))
		w.create(web)
		w.start()
		w.phase(web, v1.PodRunning)
		w.stop()
		if err := w.api.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "shop", "web"); err != nil {
			t.Fatal(err)
		}
		w.start()
		w.eventually("nothing is left", func() bool {
			left, err := os.ReadDir(filepath.Join(w.config.dir, "containers"))
			return err == nil && len(left) == 0 && len(w.mounted()) == 0
		})
		w.stop()
		if w.event(web, "ProviderDeleteFailed", "") || w.event(web, "Failed", "") {
			t.Error("an event says that something has failed")
		}
	})
}

// The object of a deleted pod stays while one of its volumes cannot be unmounted, and an
// event says why.
func TestObjectStaysWhileAVolumeIsBusy(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		w := newWorld(t, nil, false)
		web := pod("web", `sleep 1000`, memoryVolume("memory"))
		web.Spec.TerminationGracePeriodSeconds = new(int64(1))
		w.create(web)
		w.start()
		w.phase(web, v1.PodRunning)
		used, err := os.Create(filepath.Join(w.podDir(web), "volumes/kubernetes.io~empty-dir/memory/used"))
		if err != nil {
			t.Fatal(err)
		}
		defer used.Close()
		w.delete(web)
		w.eventually("an event says that the volume is busy", func() bool { return w.event(web, "FailedUnMount", "busy") })
		if p := w.get(web); p == nil || p.Status.Phase == v1.PodRunning {
			t.Errorf("the pod is %v", p)
		}
		if err := used.Close(); err != nil {
			t.Fatal(err)
		}
		w.gone(web)
		w.stop()
	})
}
