//go:build unix

package filelock_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/filelock"
)

func TestOneLockAtATime(t *testing.T) {
	dir := t.TempDir()
	first, err := filelock.Open(dir, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range []int{unix.LOCK_EX, unix.LOCK_SH} {
		if _, err := filelock.Open(dir, how|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Errorf("another lock, of kind %d: %v", how, err)
		}
	}
	// As a child has it that is about to start its program.
	kept, err := unix.Dup(int(first.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(kept)
	if err := filelock.Close(first); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		shared, err := filelock.Open(dir, unix.LOCK_SH|unix.LOCK_NB)
		if err != nil {
			t.Fatalf("unlocked, and shared: %v", err)
		}
		defer filelock.Close(shared)
	}
}

func TestWhatWasRemovedIsNotLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if _, err := filelock.Open(path, unix.LOCK_EX); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := filelock.LockLinked(file, unix.LOCK_EX); err != nil {
		t.Errorf("while it is there: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := filelock.LockLinked(file, unix.LOCK_EX); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after it was removed: %v", err)
	}
}
