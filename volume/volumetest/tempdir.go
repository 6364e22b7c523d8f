package volumetest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/removetree"
)

// memoryDir is in memory on most machines.
const memoryDir = "/dev/shm"

// memoryFor returns a directory in memory for the nodes of a run, which makes and
// removes thousands of files: a disk takes seconds for that. It is empty where
// there is none, or where TMPDIR says where to be.
func memoryFor(t *testing.T, e environment) string {
	t.Helper()
	if e == onKernel {
		return ownMemory(t)
	}
	if os.Getenv("TMPDIR") != "" || !isMemory(memoryDir) {
		return ""
	}
	dir, err := os.MkdirTemp(memoryDir, "volumetest-")
	if err != nil { // it may be closed to this user
		return ""
	}
	t.Cleanup(func() { removeTempDir(t, dir) })
	return dir
}

// removeTempDir removes a directory in which plugins that may be broken have
// worked: a mount that one of them left, and that could not be taken off, shows
// somebody's data, which must not go with the directory.
func removeTempDir(t testing.TB, dir string) {
	t.Helper()
	if err := removetree.Remove(context.Background(), filepath.Dir(dir), filepath.Base(dir)); err != nil {
		t.Errorf("a directory of the checks stays behind: %v", err)
	}
}

// ownMemory mounts a tmpfs in this mount namespace.
func ownMemory(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("volumetest", dir, "tmpfs", 0, ""); err != nil {
		t.Logf("on disk, since there is no tmpfs: %v", err)
		return ""
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// TempDir is that of testing.TB, in memory where there is any.
func (k *kit) TempDir() string {
	k.Helper()
	if k.runner.memory == "" {
		return k.reporter.TempDir()
	}
	dir, err := os.MkdirTemp(k.runner.memory, "")
	if err != nil {
		k.Fatal(err)
	}
	k.Cleanup(func() { removeTempDir(k, dir) })
	return dir
}

func isMemory(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC
}
