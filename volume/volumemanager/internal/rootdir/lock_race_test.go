package rootdir

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A program that has used the root before removes the empty directories around
// what it removed, while another one begins to use it.
func TestLockWhileEmptyDirectoriesAreRemoved(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	for range 200 {
		var remover sync.WaitGroup
		remover.Go(func() {
			for range 20 {
				_ = unix.Rmdir(StateDir(root))
				_ = unix.Rmdir(root)
			}
		})
		unlock, err := Lock(root)
		if err != nil {
			t.Fatal(err)
		}
		remover.Wait()
		if err := os.Remove(filepath.Join(StateDir(root), "lock")); err != nil {
			t.Error(err)
		}
		unlock()
	}
}

// A child that was forked and has not yet started its program has a copy of the lock's
// descriptor. It does not keep the lock.
func TestUnlockBesideACopyOfTheDescriptor(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	unlock, err := Lock(root)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(StateDir(root), "lock")
	copied := -1
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if target, _ := os.Readlink("/proc/self/fd/" + e.Name()); target == path {
			fd, err := strconv.Atoi(e.Name())
			if err != nil {
				t.Fatal(err)
			}
			if copied, err = unix.Dup(fd); err != nil {
				t.Fatal(err)
			}
		}
	}
	if copied < 0 {
		t.Fatal("nobody has the lock open")
	}
	defer unix.Close(copied)
	unlock()
	unlock, err = Lock(root)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
