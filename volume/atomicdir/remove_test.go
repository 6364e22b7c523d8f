//go:build linux

package atomicdir

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// asOrdinaryUser runs f as a user without privileges, on a thread that ends with it. f
// starts no goroutine.
func asOrdinaryUser(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked
		// Directly: the wrappers of package syscall act on all threads.
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			if _, _, errno := unix.RawSyscall(call, ordinaryUser, ordinaryUser, ordinaryUser); errno != 0 {
				t.Errorf("becoming an ordinary user: %v", errno)
				return
			}
		}
		f()
	}()
	<-done
}

const ordinaryUser = 65534

// openToAll makes a directory that an ordinary user can reach and owns.
func openToAll(t *testing.T) string {
	t.Helper()
	base := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(base), 0o755), os.Chmod(base, 0o755)); err != nil {
		t.Fatal(err)
	}
	dir := testtool.MkdirAll(t, base, "own")
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, ordinaryUser, ordinaryUser); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A tree goes whatever the modes in it, links in it are not followed, and the directory that
// is open counts, not the one that has its name by now.
func TestRemoveAtWorksByDescriptor(t *testing.T) {
	dir, elsewhere := openToAll(t), t.TempDir()
	kept := filepath.Join(elsewhere, "kept")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	asOrdinaryUser(t, func() {
		err := errors.Join(
			os.MkdirAll(filepath.Join(dir, "x/deep/er"), 0o700), os.Mkdir(filepath.Join(dir, "x/closed"), 0),
			os.WriteFile(filepath.Join(dir, "x/deep/er/file"), nil, 0), unix.Mkfifo(filepath.Join(dir, "x/fifo"), 0o600),
			os.Symlink(elsewhere, filepath.Join(dir, "x/deep/link")), os.Chmod(filepath.Join(dir, "x/deep/er"), 0o500),
			os.Chmod(filepath.Join(dir, "x"), 0o500), os.Symlink(elsewhere, filepath.Join(dir, "link")))
		if err != nil {
			t.Error(err)
			return
		}
		open, err := os.Open(dir)
		if err != nil {
			t.Error(err)
			return
		}
		defer open.Close()
		ended, end := context.WithCancel(context.Background())
		end()
		if err := removeAt(ended, int(open.Fd()), "x"); !errors.Is(err, context.Canceled) {
			t.Errorf("after the context's end: %v", err)
		}
		for _, name := range []string{"x", "link", "missing"} {
			if err := removeAt(context.Background(), int(open.Fd()), name); err != nil {
				t.Error(err)
			}
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

func TestRemoveAtCountsTheOpenDirectory(t *testing.T) {
	base := t.TempDir()
	was := testtool.MkdirAll(t, base, "volume/x")
	open, err := os.Open(filepath.Dir(was))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := os.Rename(filepath.Dir(was), filepath.Join(base, "moved")); err != nil {
		t.Fatal(err)
	}
	testtool.MkdirAll(t, base, "volume/x")
	if err := removeAt(t.Context(), int(open.Fd()), "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(base, "moved/x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in the open directory: %v", err)
	}
	if _, err := os.Stat(was); err != nil {
		t.Error(err)
	}
}

func TestRemoveAtStopsAtOtherFileSystems(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		mountPoint := testtool.MkdirAll(t, dir, "x/mounted")
		if err := unix.Mount("tmpfs", mountPoint, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(mountPoint, "kept"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		open, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		if err := removeAt(t.Context(), int(open.Fd()), "x"); !errors.Is(err, unix.EXDEV) {
			t.Errorf("err = %v", err)
		}
		if _, err := os.Stat(filepath.Join(mountPoint, "kept")); err != nil {
			t.Error(err)
		}
	})
}
