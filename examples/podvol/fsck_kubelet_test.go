package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// kubeletRoot is a root directory as a kubelet leaves it, with one good pod, one that is
// gone, a lost vol_data.json, and secrets in all that volumes have. Then it is read-only.
func kubeletRoot(t *testing.T) string {
	top, err := filepath.EvalSymlinks(t.TempDir())
	testtool.Must(t, err)
	root := testtool.MkdirAll(t, top, "kubelet")
	good := testtool.MkdirAll(t, root, "pods", "good", "volumes", "kubernetes.io~empty-dir", "cache")
	testtool.WriteFile(t, "hunter2", good, "hunter2")
	secret := testtool.MkdirAll(t, root, "pods", "good", "volumes", "kubernetes.io~secret", "credentials")
	mounttest.Mount(t, mounttest.Tmpfs(secret))
	testtool.WriteFile(t, "hunter2", secret, "hunter2")
	gone := testtool.MkdirAll(t, root, "pods", "gone", "volumes", "kubernetes.io~secret", "credentials")
	mounttest.Mount(t, mounttest.Tmpfs(gone))
	testtool.MkdirAll(t, root, "pods", "good", "volumes", "kubernetes.io~csi", "pv", "mount")
	testtool.WriteFile(t, `{"driverName": "hunter2"`, root, "pods", "good", "volumes", "kubernetes.io~csi", "pv", "vol_data.json")
	mounttest.Mount(t, mount.Request{Source: root, Target: root, Options: []string{"rbind"}})
	mounttest.Mount(t, mount.Request{Target: root, Options: []string{"bind", "remount", "ro"}})
	return root
}

func kubeletPods(t *testing.T) string {
	return testtool.WriteFile(t, `{"kind":"List","items":[{"kind":"Pod","metadata":{"uid":"good","name":"web"},"spec":{"password":"hunter2"}}]}`, t.TempDir(), "pods.json")
}

func TestFsckOfAKubeletsRoot(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := kubeletRoot(t)
		before := tree(t, root)
		out, errOut := mustPodvol(t, exitFailed, "fsck", "--root-dir", root, "--pods", kubeletPods(t), "-o", "json")
		found := make(map[string]string)
		for _, p := range problemsOf(t, out) {
			found[strings.TrimPrefix(p.Path, root+"/")] = p.Problem
			if p.Repair != "" || p.Advice == "" {
				t.Errorf("%+v", p)
			}
		}
		want := map[string]string{
			"pods/gone": "pod directory without pod", "pods/gone/volumes/kubernetes.io~secret/credentials": "leaked mount",
			"pods/good/volumes/kubernetes.io~csi/pv/vol_data.json": "CSI volume without its vol_data.json",
		}
		if diff := cmp.Diff(want, found); diff != "" {
			t.Errorf("found (-want +got):\n%s", diff)
		}
		if !strings.Contains(errOut, "--adopt fsck shows what a take-over would do") || strings.Contains(out+errOut, "hunter2") {
			t.Errorf("stderr %s", errOut)
		}
		out, _ = mustPodvol(t, exitFailed, "fsck", "--root-dir", root, "--adopt", "-o", "json")
		adopted := 0
		for _, p := range problemsOf(t, out) {
			if p.Problem == "volume without record" && strings.Contains(p.Repair, "make a record of it") {
				adopted++
			}
		}
		if adopted < 2 {
			t.Errorf("%d volumes would be adopted: %s", adopted, out)
		}
		if diff := cmp.Diff(before, tree(t, root)); diff != "" {
			t.Errorf("the root was changed:\n%s", diff)
		}
	})
}

func TestFsckBundle(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root, dir := kubeletRoot(t), t.TempDir()
		name := filepath.Join(dir, "node.tar.gz")
		mustPodvol(t, exitFailed, "fsck", "--root-dir", root, "--pods", kubeletPods(t), "--bundle", name)
		if info, err := os.Stat(name); err != nil || info.Mode() != 0o600 {
			t.Fatalf("%v, %v", info, err)
		}
		files := unpacked(t, name)
		for part, text := range map[string]string{
			"node.json": `"kernel"`, "problems.json": "leaked mount", "volumes.json": `"volume": "credentials"`,
			"mountinfo": "pods/good/volumes/kubernetes.io~secret/credentials", "listing": `"pods/good/volumes/kubernetes.io~empty-dir/cache"`,
		} {
			if !strings.Contains(files["podvol-bundle/"+part], text) {
				t.Errorf("%s lacks %q:\n%s", part, text, files["podvol-bundle/"+part])
			}
		}
		for part, text := range files {
			if strings.Contains(text, "hunter2") {
				t.Errorf("%s has a secret:\n%s", part, text)
			}
		}
		// It replaces nothing, and does not change the root.
		for _, path := range []string{name, filepath.Join(root, "x.tar.gz"), filepath.Join(root, "pods", "good", "x.tar.gz"), filepath.Join(dir, "missing", "x")} {
			mustPodvol(t, exitUsage, "fsck", "--root-dir", root, "--bundle", path)
		}
		mustPodvol(t, exitUsage, "fsck", "--root-dir", root, "--bundle", filepath.Join(dir, "y"), "--repair")
		mustPodvol(t, exitUsage, "fsck", "--root-dir", root, "--pods", filepath.Join(dir, "missing"))
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("left %v, %v", left, err)
		}
	})
}

// A bundle of a root that podvol has: its records are told of, their specifications are not.
func TestFsckBundleOfARecordedRoot(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		mustPodvol(t, exitOK, "mount", "-f", web, "--root-dir", root)
		name := filepath.Join(t.TempDir(), "node.tar.gz")
		mustPodvol(t, exitOK, "fsck", "--root-dir", root, "--bundle", name)
		files := unpacked(t, name)
		if !strings.Contains(files["podvol-bundle/volumes.json"], `"state": "mounted"`) {
			t.Errorf("volumes.json: %s", files["podvol-bundle/volumes.json"])
		}
		if err := filepath.WalkDir(filepath.Join(root, "pods"), func(path string, e os.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			for part, text := range files {
				if value := strings.TrimSpace(string(content)); filepath.Base(path) != "namespace" && len(value) > 4 && strings.Contains(text, value) {
					t.Errorf("%s has what is in %s", part, path)
				}
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
	})
}

func unpacked(t *testing.T, name string) map[string]string {
	t.Helper()
	f, err := os.Open(name)
	testtool.Must(t, err)
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	testtool.Must(t, err)
	files := make(map[string]string)
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		testtool.Must(t, err)
		text, err := io.ReadAll(archive)
		testtool.Must(t, err)
		files[header.Name] = string(text)
	}
}

// Beside an agent that owns the root, fsck waits for no lock.
func TestFsckTakesNoLock(t *testing.T) {
	root := t.TempDir()
	lock := testtool.WriteFile(t, "", testtool.MkdirAll(t, root, "podvol"), "lock")
	testtool.Must(t, os.Chmod(filepath.Dir(lock), 0o700))
	testtool.Must(t, os.Chmod(lock, 0o600))
	f, err := os.Open(lock)
	testtool.Must(t, err)
	defer f.Close()
	testtool.Must(t, eintr.Do(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX) }))
	mustPodvol(t, exitOK, "fsck", "--root-dir", root)
}
