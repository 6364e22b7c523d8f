package wipe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
)

func isBook(name string) bool { return name == "book" }

func wantFound(t *testing.T, dir, want string) {
	t.Helper()
	if want != "" {
		want = filepath.Join(dir, want)
	}
	if found, err := FindDir(t.Context(), openDir(t, dir), isBook); err != nil || found != want {
		t.Errorf("FindDir = %q, %v; want %q", found, err, want)
	}
}

func TestFindDir(t *testing.T) {
	dir, neighbour := volumeAndNeighbour(t)
	makeTree(t, neighbour, "book/", "d/book/")
	makeTree(t, dir, "d/book", "booked/f") // a file
	if err := os.Symlink(filepath.Join(neighbour, "book"), filepath.Join(dir, "empty", "book")); err != nil {
		t.Fatal(err)
	}
	wantFound(t, dir, "")
	const deep = "d/e/1/2/3/book"
	makeTree(t, dir, deep+"/x")
	for n := range 2000 {
		makeTree(t, dir, fmt.Sprintf("many/%d", n))
	}
	before := names(t, dir)
	wantFound(t, dir, deep)
	wantNames(t, dir, before...)
	wantFound(t, filepath.Join(dir, "d/e/1/2/3"), "book")
	wantFound(t, filepath.Join(dir, "d/e/1/2/3/book"), "") // below it, not itself
}

func TestFindDirEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	makeTree(t, dir, "d/book/")
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the time is over")
	cancel(cause)
	if found, err := FindDir(ctx, openDir(t, dir), isBook); !errors.Is(err, cause) || found != "" {
		t.Errorf("FindDir = %q, %v", found, err)
	}
}

// What is in a directory that cannot be read is not known.
func TestFindDirSaysWhatItCannotRead(t *testing.T) {
	dir := t.TempDir()
	makeTree(t, dir, "a/", "closed/book/")
	closed := filepath.Join(dir, "closed")
	if err := os.Chmod(closed, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(closed, 0o700) })
	root := openDir(t, dir)
	var err error
	withoutCapabilities(t, func() { _, err = FindDir(t.Context(), root, isBook) })
	if e, ok := errors.AsType[*fs.PathError](err); !ok || e.Path != closed || !errors.Is(err, unix.EACCES) {
		t.Errorf("FindDir = %v", err)
	}
}

// withoutCapabilities runs f on a thread that has none, and ends with it.
func withoutCapabilities(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}

func TestFindDirStaysOnItsMount(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		makeTree(t, dir, "d/mnt/")
		target := filepath.Join(dir, "d/mnt")
		if err := unix.Mount("tmpfs", target, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
		makeTree(t, target, "book/")
		wantFound(t, dir, "")
		wantFound(t, target, "book")
	})
}
