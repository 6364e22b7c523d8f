package volumemanager_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

func isMount(c mount.Call) bool   { return c.Op == mount.OpMount }
func isUnmount(c mount.Call) bool { return c.Op == mount.OpUnmount }

func TestWishesBeforeRunAreKept(t *testing.T) {
	w := newWorld(t)
	manager, err := volumemanager.New(w.config())
	if err != nil {
		t.Fatal(err)
	}
	if err := manager.PutPod(newPod("web", emptyDirVolume("v", ""))); err != nil {
		t.Fatal(err)
	}
	if err := manager.PutPod(newPod("gone", emptyDirVolume("v", ""))); err != nil {
		t.Fatal(err)
	}
	manager.DeletePod("uid-gone")
	w.untouched()
	w.run(manager)
	if err := manager.WaitForMounted(t.Context(), "uid-web"); err != nil {
		t.Fatal(err)
	}
	if err := manager.WaitForUnmounted(t.Context(), "uid-gone"); err != nil {
		t.Fatal(err)
	}
	if rows := manager.Explain(); len(rows) != 1 || !rows[0].Wanted || rows[0].State != volumemanager.StateMounted {
		t.Errorf("Explain = %+v", rows)
	}
}

func TestCallsAfterRun(t *testing.T) {
	w := newWorld(t)
	manager, stop := w.start()
	stop()
	if err := manager.PutPod(newPod("web")); !errors.Is(err, volumemanager.ErrStopped) {
		t.Errorf("PutPod: %v", err)
	}
	manager.DeletePod("uid-web")
	manager.PodsComplete()
	if err := manager.WaitForMounted(t.Context(), "uid-web"); !errors.Is(err, volumemanager.ErrStopped) {
		t.Errorf("WaitForMounted: %v", err)
	}
	if err := manager.WaitForUnmounted(t.Context(), "uid-web"); !errors.Is(err, volumemanager.ErrStopped) {
		t.Errorf("WaitForUnmounted: %v", err)
	}
}

func TestWaitForUnknownPod(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	if err := manager.WaitForMounted(t.Context(), "nobody"); !errors.Is(err, volumemanager.ErrUnknownPod) {
		t.Errorf("WaitForMounted: %v", err)
	}
	if err := manager.WaitForUnmounted(t.Context(), "nobody"); err != nil {
		t.Errorf("WaitForUnmounted: %v", err)
	}
	manager.DeletePod("nobody")
}

func TestPutPodRefusesBadInput(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	var invalid *volume.InvalidSpecError
	if err := manager.PutPod(newPod("web", emptyDirVolume("good", ""), nfsVolume("bad", ""))); !errors.As(err, &invalid) {
		t.Errorf("err = %v", err)
	}
	if rows := manager.Explain(); len(rows) != 0 {
		t.Errorf("rows = %+v", rows)
	}
	w.untouched()
}

// A failure is repeated after 500 ms, 1 s, 2 s … 2 m 2 s, and nothing happens
// in between.
func TestBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		remove := w.fake.Inject(mount.Fault{Match: isMount, Err: errors.New("refused")})
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
		remove := w.fake.Inject(mount.Fault{Match: isMount, Err: errors.New("refused")})
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
		remove = w.fake.Inject(mount.Fault{Match: isUnmount, Err: errors.New("busy")})
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

// An object that was missing and appears is worth a try at once.
func TestMissingObjectAppears(t *testing.T) {
	claim, pv := boundPair("nfs-211", "nfs211")
	settings := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "settings"}, Data: map[string]string{"a": "1"}}
	for name, tc := range map[string]struct {
		volume  v1.Volume
		missing []metav1.Object
	}{
		"config map":        {configMapVolume("v", "settings"), []metav1.Object{settings}},
		"claim, then PV":    {claimVolume("v", "nfs-211", false), []metav1.Object{claim, pv}},
		"PV, then claim":    {claimVolume("v", "nfs-211", false), []metav1.Object{pv, claim}},
		"another namespace": {configMapVolume("v", "settings"), []metav1.Object{&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "settings"}}, settings}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				manager, stop := w.start()
				defer stop()
				if err := manager.PutPod(newPod("web", tc.volume)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				start := time.Now()
				for _, o := range tc.missing {
					synctest.Wait()
					if row := manager.Explain()[0]; row.State != volumemanager.StateFailed || !errors.Is(row.Err, volume.ErrNotFound) {
						t.Errorf("row = %+v", row)
					}
					w.add(o)
				}
				if err := manager.WaitForMounted(t.Context(), "uid-web"); err != nil || time.Since(start) != 0 {
					t.Errorf("%v after %v", err, time.Since(start))
				}
			})
		})
	}
}

func configMapVolume(name, configMap string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
		ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: configMap}}}}
}

func (w *world) file(pod, plugin, volumeName, name string) string {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.root, "pods/uid-"+pod+"/volumes/kubernetes.io~"+plugin, volumeName, name))
	if err != nil {
		w.t.Error(err)
	}
	return string(data)
}

func TestChangedObjectsReachTheirVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "settings"}, Data: map[string]string{"a": "1"}},
			&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "key"}, Data: map[string][]byte{"k": []byte("old")}})
		manager, stop := w.start()
		defer stop()
		pod := newPod("web", configMapVolume("c", "settings"),
			v1.Volume{Name: "s", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "key"}}},
			v1.Volume{Name: "d", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
				{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}}})
		if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		published, err := os.Readlink(filepath.Join(w.root, "pods/uid-web/volumes/kubernetes.io~configmap/c/..data"))
		if err != nil {
			t.Fatal(err)
		}
		update := func(o metav1.Object) {
			t.Helper()
			if _, err := w.store.Update(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		update(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "key"}, Data: map[string][]byte{"k": []byte("new")}})
		if got := w.file("web", "secret", "s", "k"); got != "new" {
			t.Errorf("the secret volume shows %q", got)
		}
		// A change that changes no content writes nothing.
		update(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "settings", Labels: map[string]string{"l": "2"}}, Data: map[string]string{"a": "1"}})
		if now, err := os.Readlink(filepath.Join(w.root, "pods/uid-web/volumes/kubernetes.io~configmap/c/..data")); err != nil || now != published {
			t.Errorf("unchanged content was published again: %s, %s, %v", published, now, err)
		}
		update(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "settings"}, Data: map[string]string{"a": "2"}})
		if got := w.file("web", "configmap", "c", "a"); got != "2" {
			t.Errorf("the configMap volume shows %q", got)
		}
		labelled := pod.DeepCopy()
		labelled.Labels = map[string]string{"tier": "front"}
		if err := manager.PutPod(labelled); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := w.file("web", "downward-api", "d", "labels"); got != `tier="front"` {
			t.Errorf("the downwardAPI volume shows %q", got)
		}
		// The same pod again is no reason to do anything.
		statuses := 0
		defer manager.Subscribe(func(volumemanager.VolumeStatus) { statuses++ })()
		if err := manager.PutPod(labelled); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if statuses != 0 {
			t.Errorf("%d statuses of a node where nothing changes", statuses)
		}
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

// containers is the role that knows which pods still run.
type containers struct {
	mu    sync.Mutex
	gone  map[types.UID]bool
	err   error
	asked int
	f     func(types.UID)
}

func (c *containers) ContainersGone(_ context.Context, podUID types.UID) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return c.gone[podUID], c.err
}

func (c *containers) WatchContainers(f func(types.UID)) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.f = f
	return func() {}
}

func (c *containers) end(podUID types.UID) {
	c.mu.Lock()
	c.gone[podUID] = true
	f := c.f
	c.mu.Unlock()
	f(podUID)
}

func TestVolumesAreKeptUntilTheContainersAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		role := &containers{gone: map[types.UID]bool{}}
		w.containers = role
		manager, stop := w.start()
		defer stop()
		if _, err := manager.SetUpPod(t.Context(), newPod("web", nfsVolume("a", "10.0.0.1"), emptyDirVolume("b", ""))); err != nil {
			t.Fatal(err)
		}
		manager.DeletePod("uid-web")
		time.Sleep(time.Hour)
		synctest.Wait()
		if rows := manager.Explain(); len(rows) != 2 || rows[0].State != volumemanager.StateMounted || rows[0].Wanted {
			t.Errorf("with running containers: %+v", rows)
		}
		if role.asked != 2 {
			t.Errorf("the role was asked %d times in an hour, want once a volume", role.asked)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := manager.WaitForUnmounted(short, "uid-web"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "containers to be gone") {
			t.Errorf("err = %v", err)
		}
		role.end("uid-web")
		if err := manager.WaitForUnmounted(t.Context(), "uid-web"); err != nil {
			t.Error(err)
		}
		w.assertClean()
	})
}

func TestFailingContainersRoleIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		role := &containers{gone: map[types.UID]bool{}, err: errors.New("runtime is restarting")}
		w.containers = role
		manager, stop := w.start()
		defer stop()
		if _, err := manager.SetUpPod(t.Context(), newPod("web", nfsVolume("a", "10.0.0.1"))); err != nil {
			t.Fatal(err)
		}
		manager.DeletePod("uid-web")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if entries, err := w.fake.Table().BySource("10.0.0.1:/nfs"); err != nil || len(entries) != 1 {
			t.Errorf("a failed look-up counts as gone: %v, %v", entries, err)
		}
		role.mu.Lock()
		role.err, role.gone["uid-web"] = nil, true
		role.mu.Unlock()
		if err := manager.WaitForUnmounted(t.Context(), "uid-web"); err != nil {
			t.Error(err)
		}
	})
}

func TestNothingIsTornDownWithoutAPromise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		if _, err := manager.SetUpPod(t.Context(), newPod("web", nfsVolume("a", "10.0.0.1"))); err != nil {
			t.Fatal(err)
		}
		manager.DeletePod("uid-web")
		manager.PodsComplete()
		time.Sleep(time.Hour)
		synctest.Wait()
		if rows := manager.Explain(); len(rows) != 1 || rows[0].State != volumemanager.StateMounted {
			t.Errorf("rows = %+v", rows)
		}
		if err := manager.TearDownPod(t.Context(), "uid-web"); err != nil {
			t.Error(err)
		}
		w.assertClean()
	})
}

// Scenario 14: the agent restarts with pods deleted, added and running
// meanwhile.
func TestRestartWithChangedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		role := &containers{gone: map[types.UID]bool{"uid-deleted": true, "uid-running": true}}
		w.containers = role
		manager, stop := w.start()
		for _, name := range []string{"running", "deleted"} {
			if _, err := manager.SetUpPod(t.Context(), newPod(name, nfsVolume("v", "10.0.0.1"))); err != nil {
				t.Fatal(err)
			}
		}
		stop()
		w.fake.ResetCalls()
		manager, stop = w.start()
		defer stop()
		if err := manager.PutPod(newPod("running", nfsVolume("v", "10.0.0.1"))); err != nil {
			t.Fatal(err)
		}
		if err := manager.PutPod(newPod("added", nfsVolume("v", "10.0.0.1"))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if calls := w.fake.Calls(); len(calls) != 1 || !strings.Contains(calls[0].Target, "uid-added") {
			t.Errorf("before the pods are complete: %v", calls)
		}
		manager.PodsComplete()
		if err := manager.WaitForUnmounted(t.Context(), "uid-deleted"); err != nil {
			t.Error(err)
		}
		for _, uid := range []types.UID{"uid-running", "uid-added"} {
			if err := manager.WaitForMounted(t.Context(), uid); err != nil {
				t.Error(err)
			}
		}
		if calls := w.fake.Calls(); len(calls) != 2 || calls[1].Op != mount.OpUnmount || !strings.Contains(calls[1].Target, "uid-deleted") {
			t.Errorf("after that: %v", calls)
		}
	})
}

// A pod that is deleted while its mount hangs does not wait for the server.
func TestDeletionEndsAHungSetUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		w.fake.Inject(mount.Fault{Match: isMount, Release: make(chan struct{}), Nth: 1})
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
		w.fake.Inject(mount.Fault{Match: isMount, Release: make(chan struct{}), Nth: 1})
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

func TestPodDeclaredAgainDuringItsTearDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		pod := newPod("web", nfsVolume("v", "10.0.0.1"))
		if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		w.fake.Inject(mount.Fault{Match: isUnmount, Release: release, Nth: 1})
		tornDown := make(chan error, 1)
		go func() { tornDown <- manager.TearDownPod(context.Background(), pod.UID) }()
		synctest.Wait()
		if err := manager.PutPod(pod); err != nil {
			t.Fatal(err)
		}
		if err := <-tornDown; !errors.Is(err, volumemanager.ErrSuperseded) {
			t.Errorf("TearDownPod: %v", err)
		}
		close(release)
		if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil {
			t.Error(err)
		}
		if entries, err := w.fake.Table().BySource("10.0.0.1:/nfs"); err != nil || len(entries) != 1 {
			t.Errorf("mounted: %v, %v", entries, err)
		}
		if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
			t.Error(err)
		}
		w.assertClean()
	})
}

func TestVolumesOfAPodCanBeAddedAndReplacedInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		if _, err := manager.SetUpPod(t.Context(), newPod("web", emptyDirVolume("a", ""))); err != nil {
			t.Fatal(err)
		}
		if err := manager.PutPod(newPod("web", emptyDirVolume("a", ""), nfsVolume("b", "10.0.0.1"))); err != nil {
			t.Fatal(err)
		}
		if err := manager.WaitForMounted(t.Context(), "uid-web"); err != nil {
			t.Fatal(err)
		}
		// What is not in the pod any more stays while its containers may run.
		if err := manager.PutPod(newPod("web", emptyDirVolume("a", ""))); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if rows := manager.Explain(); len(rows) != 2 || rows[1].Wanted || rows[1].State != volumemanager.StateMounted {
			t.Errorf("rows = %+v", rows)
		}
		if err := manager.TearDownPod(t.Context(), "uid-web"); err != nil {
			t.Fatal(err)
		}
		w.assertClean()
	})
}
