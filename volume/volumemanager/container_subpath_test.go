package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/subpath"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
)

func configMap(name string, data map[string]string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: name}, Data: data}
}

// boundAt is the source of a sub-path of container "c".
func (w *world) boundAt(pod, spec string, index int) string {
	return filepath.Join(w.root, "pods", "uid-"+pod, "volume-subpaths", spec, "c", fmt.Sprint(index))
}

func (w *world) volumeDir(pod, plugin, spec string) string {
	return filepath.Join(w.root, "pods", "uid-"+pod, "volumes", "kubernetes.io~"+plugin, spec)
}

func mustRead(t testing.TB, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s: %q, %v, want %q", path, got, err, want)
	}
}

func TestSubPath(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := mounting(newPod("web", emptyDirVolume("scratch", v1.StorageMediumMemory)),
		v1.VolumeMount{Name: "scratch", MountPath: "/whole"},
		v1.VolumeMount{Name: "scratch", MountPath: "/made", SubPath: "a//made/./here"},
		v1.VolumeMount{Name: "scratch", MountPath: "/log", SubPathExpr: "logs/$(POD)$$x"},
		v1.VolumeMount{Name: "scratch", MountPath: "/file", SubPath: "file", ReadOnly: true},
	)
	setUp(t, manager, pod)
	dir := w.volumeDir("web", "empty-dir", "scratch")
	if err := os.Chmod(dir, 0o2770|fs.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	putFile(t, filepath.Join(dir, "file"), "content")
	mounts, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{Env: map[string]string{"POD": "web"}})
	if err != nil {
		t.Fatal(err)
	}
	private := mount.PropagationPrivate
	want := []containermounts.Mount{
		{Volume: "scratch", Source: w.boundAt("web", "scratch", 3), Destination: "/file", SubPath: "file", ReadOnly: true, File: true, Propagation: private, SELinuxRelabel: true},
		{Volume: "scratch", Source: w.boundAt("web", "scratch", 2), Destination: "/log", SubPath: "logs/web$x", Propagation: private, SELinuxRelabel: true},
		{Volume: "scratch", Source: w.boundAt("web", "scratch", 1), Destination: "/made", SubPath: "a/made/here", Propagation: private, SELinuxRelabel: true},
		{Volume: "scratch", Source: dir, Destination: "/whole", Propagation: private, SELinuxRelabel: true},
	}
	if diff := cmp.Diff(want, mounts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, made := range []string{"a", "a/made/here", "logs/web$x"} {
		if info, err := os.Stat(filepath.Join(dir, made)); err != nil || info.Mode() != fs.ModeDir|fs.ModeSetgid|0o770 {
			t.Errorf("%s: %v, %v", made, info.Mode(), err)
		}
	}
	for at := filepath.Dir(w.boundAt("web", "scratch", 1)); at != w.root; at = filepath.Dir(at) {
		if info, err := os.Stat(at); err != nil || info.Mode().Perm()&^0o750 != 0 {
			t.Errorf("the sub-path's mode is not for what is around its place: %s: %v, %v", at, info.Mode(), err)
		}
	}
	putFile(t, filepath.Join(w.boundAt("web", "scratch", 1), "new"), "seen")
	mustRead(t, filepath.Join(dir, "a/made/here/new"), "seen")
	mustRead(t, w.boundAt("web", "scratch", 3), "content")

	w.fake.ResetCalls()
	if _, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{Env: map[string]string{"POD": "web"}}); err != nil {
		t.Fatal(err)
	}
	if calls := w.fake.Calls(); len(calls) > 0 {
		t.Errorf("what was bound already is touched: %v", calls)
	}
	tearDown(t, manager, pod)
	w.assertClean()
}

func TestRefusedSubPaths(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	for name, tc := range map[string]struct {
		expr  string
		says  string
		valid bool
	}{
		"missing variables": {expr: "$(A)/$(SET)/$(B)", says: "A, B"},
		"out of it":         {expr: "a/$(UP)/b", says: `".."`},
		"absolute":          {expr: "$(ROOT)", says: "relative"},
		"nothing":           {expr: "$(NONE)", says: "nothing"},
		"escaped":           {expr: "$$(A)", valid: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := mounting(newPod("web", emptyDirVolume("v", "")), v1.VolumeMount{Name: "v", MountPath: "/v", SubPathExpr: tc.expr})
			setUp(t, manager, pod)
			_, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{
				Env: map[string]string{"SET": "x", "UP": "..", "ROOT": "/etc", "NONE": ""}})
			if tc.valid {
				if err != nil {
					t.Error(err)
				}
				return
			}
			invalid, ok := errors.AsType[*volume.InvalidSpecError](err)
			if !ok || invalid.Field != "spec.containers[0].volumeMounts[0].subPathExpr" || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("err = %v", err)
			}
		})
	}
}

// A link that leads out of the volume is not followed, whoever put it there.
func TestSubPathThatLeadsOut(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := mounting(newPod("web", emptyDirVolume("v", "")), v1.VolumeMount{Name: "v", MountPath: "/v", SubPath: "link/etc"})
	setUp(t, manager, pod)
	if err := os.Symlink("../../../../..", filepath.Join(w.volumeDir("web", "empty-dir", "v"), "link")); err != nil {
		t.Fatal(err)
	}
	_, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
	if _, ok := errors.AsType[*subpath.EscapeError](err); !ok {
		t.Errorf("err = %v", err)
	}
	tearDown(t, manager, pod)
	w.assertClean()
}

func TestMissingSubPathOfAReadOnlyVolume(t *testing.T) {
	for name, tc := range map[string]struct {
		volume v1.Volume
		fails  bool
	}{
		"config map":      {configMapVolume("config", "config"), true},
		"read-only claim": {claimVolume("config", "data", true), true},
		"writable claim":  {claimVolume("config", "data", false), false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			claim, pv := boundPair("data", "nfs211")
			w.add(claim, pv, configMap("config", map[string]string{"key": "value"}))
			manager, _ := w.start()
			pod := mounting(newPod("web", tc.volume), v1.VolumeMount{Name: "config", MountPath: "/etc/typo", SubPath: "kye", ReadOnly: true})
			setUp(t, manager, pod)
			_, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
			_, readOnly := errors.AsType[*subpath.ReadOnlyError](err)
			if readOnly != tc.fails || (err != nil) != tc.fails {
				t.Errorf("err = %v", err)
			}
			tearDown(t, manager, pod)
			w.assertClean()
		})
	}
}

// The sub-path of an updated config map is what it is now when it is asked for
// again.
func TestSubPathOfAnUpdatedConfigMap(t *testing.T) {
	w := newWorld(t)
	w.add(configMap("config", map[string]string{"key": "old"}))
	manager, _ := w.start()
	pod := mounting(newPod("web", configMapVolume("config", "config")), v1.VolumeMount{Name: "config", MountPath: "/etc/key", SubPath: "key"})
	setUp(t, manager, pod)
	source := containerMounts(t, manager, pod)[0].Source
	mustRead(t, source, "old")
	if _, err := w.store.Update(t.Context(), configMap("config", map[string]string{"key": "new"})); err != nil {
		t.Fatal(err)
	}
	setUp(t, manager, pod)
	mustRead(t, source, "old") // until somebody asks
	if again := containerMounts(t, manager, pod)[0].Source; again != source {
		t.Errorf("%s has become %s", source, again)
	}
	mustRead(t, source, "new")
	tearDown(t, manager, pod)
	w.assertClean()
}

// What was a file may be a directory now.
func TestSubPathOfAnotherKind(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := mounting(newPod("web", emptyDirVolume("v", "")), v1.VolumeMount{Name: "v", MountPath: "/v", SubPath: "x"})
	setUp(t, manager, pod)
	x := filepath.Join(w.volumeDir("web", "empty-dir", "v"), "x")
	for i, file := range []bool{false, true, false} {
		if err := os.RemoveAll(x); err != nil {
			t.Fatal(err)
		}
		if file {
			putFile(t, x, "")
		}
		if got := containerMounts(t, manager, pod)[0]; got.File != file {
			t.Errorf("%d: %+v", i, got)
		}
	}
	tearDown(t, manager, pod)
	w.assertClean()
}

// Sub-paths survive a restart, and the next manager's tear-down finds them by
// the mount table alone.
func TestSubPathsOfAnEarlierManager(t *testing.T) {
	w := newWorld(t)
	manager, stop := w.start()
	pod := mounting(newPod("web", emptyDirVolume("v", "")), v1.VolumeMount{Name: "v", MountPath: "/v", SubPath: "x"})
	setUp(t, manager, pod)
	containerMounts(t, manager, pod)
	stop()
	manager, _ = w.start()
	w.fake.ResetCalls()
	setUp(t, manager, pod)
	containerMounts(t, manager, pod)
	if calls := w.fake.Calls(); len(calls) > 0 {
		t.Errorf("bound anew: %v", calls)
	}
	tearDown(t, manager, pod)
	w.assertClean()
}

// A hundred sub-paths are unmounted by one look at the table, and one call each.
func TestHundredSubPaths(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := mounting(newPod("web", emptyDirVolume("v", "")))
	const count = 100
	for i := range count {
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts,
			v1.VolumeMount{Name: "v", MountPath: fmt.Sprint("/v", i), SubPath: fmt.Sprint("dir/", i)})
	}
	setUp(t, manager, pod)
	if mounts := containerMounts(t, manager, pod); len(mounts) != count {
		t.Errorf("%d mounts", len(mounts))
	}
	w.fake.ResetCalls()
	tearDown(t, manager, pod)
	if calls := w.fake.Calls(); len(calls) != count {
		t.Errorf("%d calls for %d sub-paths", len(calls), count)
	}
	w.assertClean()
}

// Callers for one container get the same, and each sub-path is bound once.
func TestConcurrentContainerMounts(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := mounting(newPod("web", emptyDirVolume("v", "")),
		v1.VolumeMount{Name: "v", MountPath: "/x", SubPath: "x"}, v1.VolumeMount{Name: "v", MountPath: "/y", SubPath: "y/z"})
	setUp(t, manager, pod)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if mounts, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{}); err != nil || len(mounts) != 2 {
				t.Errorf("%v, %v", mounts, err)
			}
		})
	}
	all.Wait()
	if calls := w.fake.Calls(); len(calls) != 2 {
		t.Errorf("calls %v", calls)
	}
	tearDown(t, manager, pod)
	w.assertClean()
}

// A tear-down waits for a bind that is under way, and one that comes after it
// is refused: nothing is left bound.
func TestTearDownWhileASubPathIsBound(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := mounting(newPod("web", emptyDirVolume("v", "")),
		v1.VolumeMount{Name: "v", MountPath: "/x", SubPath: "x"}, v1.VolumeMount{Name: "v", MountPath: "/y", SubPath: "y"})
	setUp(t, manager, pod)
	arrived, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.fake.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool {
		if c.Op == mount.OpMount {
			once.Do(func() { close(arrived) })
			return true
		}
		return false
	}, Release: release})
	asked := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _, err := manager.ContainerMounts(ctx, pod.UID, "c", containermounts.Options{})
		asked <- err
	}()
	<-arrived
	gone := make(chan error, 1)
	manager.DeletePod(pod.UID)
	go func() { gone <- manager.TearDownPod(context.Background(), pod.UID) }()
	cancel()
	if err := <-asked; !errors.Is(err, context.Canceled) {
		t.Errorf("ContainerMounts: %v", err)
	}
	select {
	case err := <-gone:
		t.Fatalf("torn down while a sub-path is bound: %v", err)
	default:
	}
	close(release)
	if err := <-gone; err != nil {
		t.Fatal(err)
	}
	w.assertClean()
	if mounts := slices.DeleteFunc(w.fake.Calls(), func(c fakemount.Call) bool { return c.Op != mount.OpMount }); len(mounts) != 1 {
		t.Errorf("mounted after it was deleted: %v", mounts)
	}
}

// A bind that fails leaves nothing that keeps the pod, and the next one works.
func TestSubPathThatCannotBeBound(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := mounting(newPod("web", emptyDirVolume("v", "")), v1.VolumeMount{Name: "v", MountPath: "/x", SubPath: "x"})
	setUp(t, manager, pod)
	remove := w.fake.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return c.Op == mount.OpMount }, Err: fs.ErrPermission})
	_, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
	if failed, ok := errors.AsType[*volume.Error](err); !ok || failed.Volume != "v" || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("err = %v", err)
	}
	remove()
	containerMounts(t, manager, pod)
	tearDown(t, manager, pod)
	w.assertClean()
}

// However calls and tear-downs meet, nothing is left bound.
func TestContainerMountsRacesWithTearDown(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	for round := range 60 {
		pod := mounting(newPod("web", emptyDirVolume("v", ""), emptyDirVolume("m", v1.StorageMediumMemory)),
			v1.VolumeMount{Name: "v", MountPath: "/x", SubPath: "x"}, v1.VolumeMount{Name: "m", MountPath: "/y", SubPath: "y/z"}, v1.VolumeMount{Name: "v", MountPath: "/y/z/v"})
		setUp(t, manager, pod)
		var all sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			all.Go(func() {
				if i == round%len(errs) {
					errs[i] = manager.TearDownPod(context.Background(), pod.UID)
					return
				}
				_, _, errs[i] = manager.ContainerMounts(context.Background(), pod.UID, "c", containermounts.Options{})
			})
		}
		all.Wait()
		if err := errs[round%len(errs)]; err != nil {
			t.Fatalf("round %d: the tear-down: %v", round, err)
		}
		w.assertClean()
		if t.Failed() {
			t.Fatalf("in round %d; the others: %v", round, errs)
		}
	}
}
