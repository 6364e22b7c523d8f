package removetree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
)

func empty(ctx context.Context, t testing.TB, k kernel, dir string, flags int) (removed int, err error) {
	t.Helper()
	f, err := os.OpenFile(dir, flags|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = emptyAt(ctx, f, nil, func() { removed++ }, k)
	return removed, err
}

func TestEmpty(t *testing.T) {
	for name, k := range kernels {
		for _, flags := range []int{os.O_RDONLY, unix.O_PATH} {
			t.Run(fmt.Sprintf("%s/%#x", name, flags), func(t *testing.T) {
				base := t.TempDir()
				dir := filepath.Join(base, "x")
				makeTree(t, base, "x/a", "x/.hidden", "x/..data", "x/d/e/f", "x/g/", "neighbour/kept")
				if err := os.Symlink("../neighbour", filepath.Join(dir, "link")); err != nil {
					t.Fatal(err)
				}
				if err := unix.Mkfifo(filepath.Join(dir, "d", "fifo"), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(dir, 0o751|fs.ModeSetgid); err != nil {
					t.Fatal(err)
				}
				before, err := os.Stat(dir)
				if err != nil {
					t.Fatal(err)
				}
				removed, err := empty(t.Context(), t, k, dir, flags)
				if err != nil || removed != 9 {
					t.Errorf("%d removed, %v; want 9", removed, err)
				}
				if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
					t.Errorf("left: %v, %v", left, err)
				}
				after, err := os.Stat(dir)
				if err != nil || !os.SameFile(before, after) || before.Mode() != after.Mode() {
					t.Errorf("the directory was %v and is %v, %v", before.Mode(), after.Mode(), err)
				}
				if !exists(t, filepath.Join(base, "neighbour/kept")) {
					t.Error("a link was followed")
				}
				if removed, err := empty(t.Context(), t, k, dir, flags); err != nil || removed != 0 {
					t.Errorf("again: %d, %v", removed, err)
				}
			})
		}
	}
}

// A directory that does not belong to us keeps its mode, even where opening it
// up would help.
func TestEmptyNeverOpensUpTheDirectoryItself(t *testing.T) {
	base := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(base), 0o755), os.Chmod(base, 0o777)); err != nil {
		t.Fatal(err)
	}
	asOrdinaryUser(t, func() {
		dir := filepath.Join(base, "x")
		makeTree(t, dir, "a")
		for _, mode := range []fs.FileMode{0o500, 0o300} {
			if err := os.Chmod(dir, mode); err != nil {
				t.Error(err)
			}
			if removed, err := empty(t.Context(), t, kernel{openat2: true, mountID: true}, dir, unix.O_PATH); !errors.Is(err, fs.ErrPermission) || removed > 0 {
				t.Errorf("mode %v: %d removed, %v", mode, removed, err)
			}
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != mode {
				t.Errorf("the mode was %v and is %v, %v", mode, info.Mode(), err)
			}
		}
		os.Chmod(dir, 0o700)
	})
}

// What is interrupted goes on where it was.
func TestEmptyIsResumed(t *testing.T) {
	dir := t.TempDir()
	const files = 5000
	for n := range files {
		makeTree(t, dir, fmt.Sprintf("%d/%d", n%7, n))
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	total, rounds := 0, 0
	for err := context.Canceled; errors.Is(err, context.Canceled); rounds++ {
		ctx, cancel := context.WithCancel(t.Context())
		stopAt := total + 1000
		err = EmptyAt(ctx, f, nil, func() {
			if total++; total == stopAt {
				cancel()
			}
		})
		cancel()
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 || total != files+7 || rounds < 5 {
		t.Errorf("%d left, %v; %d removed in %d rounds", len(left), err, total, rounds)
	}
}

func TestEmptyStopsAtMounts(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for name, k := range kernels {
			t.Run(name, func(t *testing.T) {
				dir := t.TempDir()
				makeTree(t, dir, "a/mnt/", "b")
				target := filepath.Join(dir, "a/mnt")
				mountTmpfs(t, target, "")
				_, err := empty(t.Context(), t, k, dir, os.O_RDONLY)
				if mounted, ok := errors.AsType[*MountError](err); !ok || mounted.Path != target {
					t.Fatalf("err = %v, want a MountError for %s", err, target)
				}
				if !exists(t, filepath.Join(target, "in-tmpfs")) {
					t.Error("the mounted tmpfs was emptied")
				}
				if err := unix.Unmount(target, 0); err != nil {
					t.Fatal(err)
				}
				if _, err := empty(t.Context(), t, k, dir, os.O_RDONLY); err != nil {
					t.Errorf("after the unmount: %v", err)
				}
			})
		}
	})
}

// One name stays, with all that is in it, but not where it comes again below.
func TestEmptyAllBut(t *testing.T) {
	for name, k := range kernels {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			makeTree(t, dir, "a", "kept/in/it", "b/kept/gone")
			f, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for range 2 {
				if err := emptyAllBut(t.Context(), f, "kept", nil, nil, k); err != nil {
					t.Fatal(err)
				}
			}
			left, err := os.ReadDir(dir)
			if err != nil || len(left) != 1 || !exists(t, filepath.Join(dir, "kept/in/it")) {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}
