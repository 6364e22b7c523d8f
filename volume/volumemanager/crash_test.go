package volumemanager_test

import (
	"context"
	"errors"
	"flag"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/calltrace"
	"github.com/podvol/podvol/util/testenv/invariant"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

var (
	crashEvery = flag.Int("crash.every", 0, "kill at every n-th system call that changes something; 0: at each as root, at every third as an ordinary user; with -short at one of 23 of these")
	crashAt    = flag.Int("crash.at", 0, "kill at this system call only")
)

// crashDirVar tells the process that is to be killed where it works.
const crashDirVar = "PODVOL_VOLUMEMANAGER_CRASH_DIR"

// crashSite is what outlives the killed process: a root directory, a host's
// directory, and a file in which the process notes how far it got.
type crashSite struct{ root, host, progress string }

func siteAt(dir string) crashSite {
	return crashSite{filepath.Join(dir, "root"), filepath.Join(dir, "host"), filepath.Join(dir, "progress")}
}

// What the process notes, when it has done it.
const (
	notedData    = "data\n"    // both emptyDirs have a file
	notedLeaving = "leaving\n" // the pod shall go: before the tear-down
)

var crashData = map[string]string{"disk": "on disk", "ram": "in memory"}

const crashPodUID types.UID = "uid-crash"

func (s crashSite) pod() *v1.Pod {
	config := &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}}
	return newPod("crash", emptyDirVolume("ram", v1.StorageMediumMemory), emptyDirVolume("disk", ""),
		v1.Volume{Name: "settings", VolumeSource: v1.VolumeSource{ConfigMap: config}},
		v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: s.host}}})
}

// brokenPod has a volume whose set-up makes directories, and fails.
func (s crashSite) brokenPod() *v1.Pod {
	return newPod("broken", fuseVolume("v", filepath.Join(s.host, "missing")))
}

func settings(version string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "settings"}, Data: map[string]string{"a": version, "b": version}}
}

func (s crashSite) path(plugin, name string) string {
	return filepath.Join(s.root, "pods", string(crashPodUID), "volumes", "kubernetes.io~"+plugin, name)
}

// TestCrashScenario is not a test of its own: it is the life of a pod in the
// process that is killed.
func TestCrashScenario(t *testing.T) {
	dir := os.Getenv(crashDirVar)
	if dir == "" {
		return
	}
	s := siteAt(dir)
	note := func(what string) {
		file, err := os.OpenFile(s.progress, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			_, err = file.WriteString(what)
			err = errors.Join(err, file.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	manager, store, stop := s.start(t, "1", nil)
	vols, err := manager.SetUpPod(t.Context(), s.pod())
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range crashData {
		path, _ := vols.Path(name)
		if err := os.WriteFile(filepath.Join(path, "file"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	note(notedData)
	if _, err := manager.SetUpPod(t.Context(), s.brokenPod()); err == nil {
		t.Fatal("the broken pod was set up")
	}
	if err := manager.TearDownPod(t.Context(), s.brokenPod().UID); err != nil {
		t.Fatal(err)
	}
	changes := make(chan struct{}, 16)
	unsubscribe := manager.Subscribe(func(row volumemanager.VolumeStatus) {
		if row.Volume == "settings" && row.Ended != "" {
			changes <- struct{}{}
		}
	})
	if _, err := store.Update(t.Context(), settings("2")); err != nil {
		t.Fatal(err)
	}
	<-changes
	unsubscribe()
	note(notedLeaving)
	if err := manager.TearDownPod(t.Context(), crashPodUID); err != nil {
		t.Fatal(err)
	}
	stop()
}

// start runs a manager that mounts for real, in a world whose config map has
// this version.
func (s crashSite) start(t *testing.T, version string, role volumemanager.PodContainers) (m *volumemanager.Manager, store *objects.Store, stop func()) {
	t.Helper()
	w := &world{t: t, root: s.root, store: objects.NewStore(), events: &events{}}
	w.add(settings(version))
	config := w.config()
	config.Mounter, config.Plugins, config.Containers = nil, append(plugins.All(), &fusePlugin{t: t}), role
	m, err := volumemanager.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return m, w.store, w.run(m)
}

// A process that is killed at any system call that changes something leaves a
// state from which the next one goes on: no file is lost, no mount leaked, none
// made twice.
func TestCrashAtEverySystemCall(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		every := *crashEvery
		if every <= 0 {
			every = 1
			if !strings.HasSuffix(t.Name(), "/root") {
				every = 3
			}
			if testtool.Shortened() {
				every *= 47
			}
		}
		first := 1
		if *crashAt > 0 {
			first = *crashAt
		}
		base, err := filepath.EvalSymlinks(t.TempDir()) // as the mount table has it
		if err != nil {
			t.Fatal(err)
		}
		// No machine fails here, only a process: memory will do as a disk.
		if err := unix.Mount("crash", base, "tmpfs", 0, "size=256m"); err != nil {
			t.Fatal(err)
		}
		points := 0
		for n := first; crashOnce(t, base, calltrace.Point{N: n}) && crashOnce(t, base, calltrace.Point{N: n, After: true}); n += every {
			points++
			if t.Failed() || *crashAt > 0 {
				return
			}
		}
		t.Logf("killed before and after each of %d system calls", points)
		if points < 100/every {
			t.Errorf("the scenario has only %d system calls that change something", points*every)
		}
	})
}

// crashOnce kills one process and sees to what it left. It reports false if the
// process had ended before the point.
func crashOnce(t *testing.T, base string, at calltrace.Point) (killed bool) {
	t.Helper()
	dir, err := os.MkdirTemp(base, "")
	if err != nil {
		t.Fatal(err)
	}
	s := siteAt(dir)
	if err := errors.Join(os.Mkdir(s.host, 0o755), os.WriteFile(filepath.Join(s.host, "precious"), []byte("host's"), 0o600), os.WriteFile(s.progress, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	killed, call := calltrace.Process{Args: []string{"-test.run=^TestCrashScenario$", "-test.timeout=5m"}, Env: []string{crashDirVar + "=" + dir}}.RunUntil(t, at, calltrace.ChangesBelow(s.root))
	where, run := "after the whole scenario", t.Name()
	if killed {
		where = "killed " + at.String()
	}
	t.Run(where, func(t *testing.T) {
		defer func() {
			if t.Failed() {
				t.Logf("%s: %s\nto repeat: go test -run='^%s$' -crash.at=%d", where, call, strings.ReplaceAll(run, "/", "$/^"), at.N)
			}
		}()
		progress, err := os.ReadFile(s.progress)
		if err != nil {
			t.Fatal(err)
		}
		kept := strings.Contains(string(progress), notedData) && !strings.Contains(string(progress), notedLeaving)
		s.assertKept(t, "after the kill", kept)
		if (at.N%2 == 0) == at.After {
			s.setUpAgain(t, kept)
		} else {
			s.release(t, kept)
		}
		s.assertClean(t)
	})
	if !t.Failed() {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	return killed
}

// setUpAgain: the next process has the same pod.
func (s crashSite) setUpAgain(t *testing.T, kept bool) {
	m, _, stop := s.start(t, "2", nil)
	defer stop()
	s.assertKept(t, "after recovery", kept)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := m.SetUpPod(ctx, s.pod()); err != nil {
		t.Fatal(err)
	}
	s.assertKept(t, "after the pod was set up again", kept)
	if n := len(s.mounted(t)); n != 1 {
		t.Errorf("%d mounts below the root, want that of the emptyDir in memory", n)
	}
	for _, name := range []string{"a", "b"} {
		assertFile(t, filepath.Join(s.path("configmap", "settings"), name), "2")
	}
	for _, uid := range []types.UID{crashPodUID, s.brokenPod().UID} {
		if err := m.TearDownPod(ctx, uid); err != nil {
			t.Fatal(err)
		}
	}
}

// release: the pod is not there any more when the next process starts.
func (s crashSite) release(t *testing.T, kept bool) {
	m, _, stop := s.start(t, "2", allGone{})
	defer stop()
	s.assertKept(t, "after recovery", kept)
	m.PodsComplete()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, uid := range []types.UID{crashPodUID, s.brokenPod().UID} {
		if err := m.WaitForUnmounted(ctx, uid); err != nil {
			t.Fatal(err)
		}
	}
}

// allGone is a node without containers.
type allGone struct{}

func (allGone) ContainersGone(context.Context, types.UID) (bool, error) { return true, nil }
func (allGone) WatchContainers(func(types.UID)) (stop func())           { return func() {} }

// mounted are the targets below the root, as the kernel has them.
func (s crashSite) mounted(t *testing.T) []string {
	t.Helper()
	targets, err := invariant.Mounted(s.root, kernelTable(t))
	if err != nil {
		t.Fatal(err)
	}
	return targets
}

func kernelTable(t *testing.T) mount.Table {
	t.Helper()
	mounts := table.Kernel()
	return mounts
}

func (s crashSite) records(t *testing.T) []string {
	t.Helper()
	keys, err := invariant.Records(s.root)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// assertKept: what holds at any time.
func (s crashSite) assertKept(t *testing.T, when string, data bool) {
	t.Helper()
	files := map[string]string{filepath.Join(s.host, "precious"): "host's"}
	if data {
		maps.Copy(files, s.data())
	}
	err := invariant.CheckFiles(files)
	if _, missing := os.Lstat(s.root); !errors.Is(missing, fs.ErrNotExist) { // else it was killed before it made it
		err = invariant.Violations(s.root, kernelTable(t), files)
	}
	if err != nil {
		t.Errorf("%s: %v", when, err)
	}
}

// data are the files of the emptyDirs.
func (s crashSite) data() map[string]string {
	files := make(map[string]string)
	for name, content := range crashData {
		files[filepath.Join(s.path("empty-dir", name), "file")] = content
	}
	return files
}

func assertFile(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	} else if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// assertClean: of the pod nothing is left, and of the host nothing is lost.
func (s crashSite) assertClean(t *testing.T) {
	t.Helper()
	for _, target := range s.mounted(t) {
		t.Errorf("%s is still mounted", target)
	}
	if keys := s.records(t); len(keys) > 0 {
		t.Errorf("records are left: %v", keys)
	}
	err := filepath.WalkDir(filepath.Join(s.root, "pods"), func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || path == filepath.Join(s.root, "pods") {
			return nil
		}
		t.Errorf("%s is left", path)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	assertFile(t, filepath.Join(s.host, "precious"), "host's")
}
