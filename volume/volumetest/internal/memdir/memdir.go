// Package memdir gives directories in memory to a run of checks, which makes and
// removes thousands of files: a disk takes seconds for that.
package memdir

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/removetree"
)

// Dir is in memory on most machines.
const Dir = "/dev/shm"

// New returns a directory in memory until the end of the test. It is empty where
// there is none, or where TMPDIR says where to be.
func New(t testing.TB) string {
	t.Helper()
	if os.Getenv("TMPDIR") != "" || !IsMemory(Dir) {
		return ""
	}
	dir, err := os.MkdirTemp(Dir, "volumetest-")
	if err != nil { // it may be closed to this user
		return ""
	}
	t.Cleanup(func() { Remove(t, dir) })
	return dir
}

// Remove removes a directory in which plugins that may be broken have
// worked: a mount that one of them left, and that could not be taken off, shows
// somebody's data, which must not go with the directory.
func Remove(t testing.TB, dir string) {
	t.Helper()
	if err := removetree.Remove(context.Background(), filepath.Dir(dir), filepath.Base(dir)); err != nil {
		t.Errorf("a directory of the checks stays behind: %v", err)
	}
}

// Mount is [New] by a tmpfs of its own in this mount namespace.
func Mount(t testing.TB) string {
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

// IsMemory reports whether a directory is in memory.
func IsMemory(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC
}
