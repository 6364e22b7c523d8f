package volumemanager_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/testenv/calltrace"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume/containermounts"
)

const subPathCrashVar = "PODVOL_VOLUMEMANAGER_SUBPATH_CRASH_DIR"

func subPathCrashPod() *v1.Pod {
	pod := newPod("crash", emptyDirVolume("ram", v1.StorageMediumMemory))
	pod.UID = crashPodUID
	return mounting(pod, v1.VolumeMount{Name: "ram", MountPath: "/dir", SubPath: "a/dir"}, v1.VolumeMount{Name: "ram", MountPath: "/file", SubPath: "file"},
		v1.VolumeMount{Name: "ram", MountPath: "/dir/nested", SubPath: "b"})
}

// TestSubPathCrashScenario is not a test of its own: it is the life of a pod
// with sub-paths in the process that is killed.
func TestSubPathCrashScenario(t *testing.T) {
	dir := os.Getenv(subPathCrashVar)
	if dir == "" {
		return
	}
	s, pod := siteAt(dir), subPathCrashPod()
	manager, _, stop := s.start(t, "1", nil)
	setUp(t, manager, pod)
	putFile(t, filepath.Join(s.path("empty-dir", "ram"), "file"), "old")
	containerMounts(t, manager, pod)
	if err := os.Rename(filepath.Join(s.path("empty-dir", "ram"), "a/dir"), filepath.Join(s.path("empty-dir", "ram"), "moved")); err != nil {
		t.Fatal(err)
	}
	containerMounts(t, manager, pod) // which binds it anew
	tearDown(t, manager, pod)
	stop()
}

// However a process ends that binds sub-paths, each of them belongs to a volume
// with a record, the next process shows what a container needs, and the
// tear-down leaves nothing.
func TestSubPathsAfterACrash(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		base, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("crash", base, "tmpfs", 0, "size=256m"); err != nil {
			t.Fatal(err)
		}
		every := 2
		if !strings.HasSuffix(t.Name(), "/root") {
			every = 5
		}
		if testtool.Shortened() {
			every *= 19
		}
		points := 0
		for n := 1; subPathCrashOnce(t, base, calltrace.Point{N: n, After: n/every%2 == 0}); n += every {
			points++
			if t.Failed() {
				return
			}
		}
		t.Logf("killed at %d system calls", points)
		if points < 50/every {
			t.Errorf("the scenario has only %d system calls that change something", points*every)
		}
	})
}

func subPathCrashOnce(t *testing.T, base string, at calltrace.Point) (killed bool) {
	t.Helper()
	dir, err := os.MkdirTemp(base, "")
	if err != nil {
		t.Fatal(err)
	}
	s := siteAt(dir)
	if err := errors.Join(os.Mkdir(s.host, 0o755), os.WriteFile(filepath.Join(s.host, "precious"), []byte("host's"), 0o600)); err != nil {
		t.Fatal(err)
	}
	killed, call := calltrace.Process{Args: []string{"-test.run=^TestSubPathCrashScenario$", "-test.timeout=5m"}, Env: []string{subPathCrashVar + "=" + dir}}.RunUntil(t, at, calltrace.ChangesBelow(s.root))
	t.Run(at.String(), func(t *testing.T) {
		defer func() {
			if t.Failed() {
				t.Logf("killed %s: %s", at, call)
			}
		}()
		s.assertSubPaths(t, "after the kill")
		if at.After {
			s.showAgain(t)
		} else {
			s.release(t, false)
		}
		s.assertClean(t)
	})
	return killed
}

// assertSubPaths: a sub-path is bound only while its volume is mounted, and
// what is mounted has a record.
func (s crashSite) assertSubPaths(t *testing.T, when string) {
	t.Helper()
	s.assertKept(t, when, false)
	targets := s.mounted(t)
	for _, target := range targets {
		if strings.Contains(target, "/volume-subpaths/ram/") && !slices.Contains(targets, s.path("empty-dir", "ram")) {
			t.Errorf("%s: %s has outlived its volume", when, target)
		}
	}
}

// showAgain: the next process has the same pod.
func (s crashSite) showAgain(t *testing.T) {
	m, _, stop := s.start(t, "2", nil)
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pod := subPathCrashPod()
	if _, err := m.SetUpPod(ctx, pod); err != nil {
		t.Fatal(err)
	}
	mounts, _, err := m.ContainerMounts(ctx, crashPodUID, "c", containermounts.Options{})
	if err != nil || len(mounts) != 3 {
		t.Fatalf("%v, %v", mounts, err)
	}
	s.assertSubPaths(t, "after the container was asked for again")
	for _, mount := range mounts {
		inVolume, err := os.Stat(filepath.Join(s.path("empty-dir", "ram"), mount.SubPath))
		if err != nil {
			t.Fatal(err)
		}
		if shown, err := os.Stat(mount.Source); err != nil || !os.SameFile(shown, inVolume) {
			t.Errorf("%s does not show %s: %v", mount.Source, mount.SubPath, err)
		}
	}
	if err := m.TearDownPod(ctx, crashPodUID); err != nil {
		t.Fatal(err)
	}
}
