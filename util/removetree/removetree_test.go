package removetree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// kernels are the ways that this kernel offers; each must give the same
// answers.
var kernels = map[string]kernel{
	"openat2": {openat2: true, mountID: true},
	"statx":   {mountID: true},
	"st_dev":  {},
}

func makeTree(t testing.TB, dir string, files ...string) {
	t.Helper()
	for _, name := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(path, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func exists(t testing.TB, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func remove(ctx context.Context, k kernel, parent, name string) error {
	dir, err := os.Open(parent)
	if err != nil {
		return err
	}
	defer dir.Close()
	return removeAt(ctx, dir, name, k)
}

func TestRemove(t *testing.T) {
	for _, tc := range []struct {
		name    string
		prepare func(t *testing.T, dir string)
	}{
		{"nothing", func(*testing.T, string) {}},
		{"file", func(t *testing.T, dir string) { makeTree(t, dir, "x") }},
		{"empty directory", func(t *testing.T, dir string) { makeTree(t, dir, "x/") }},
		{"tree", func(t *testing.T, dir string) {
			makeTree(t, dir, "x/a", "x/b/c", "x/b/d/e/f", "x/b/g/", "x/h/")
		}},
		{"dangling link", func(t *testing.T, dir string) {
			if err := os.Symlink("nowhere", filepath.Join(dir, "x")); err != nil {
				t.Fatal(err)
			}
		}},
		{"links to a neighbour", func(t *testing.T, dir string) {
			makeTree(t, dir, "x/a")
			for _, link := range []string{"x/link", "x/link2"} {
				if err := os.Symlink("../neighbour", filepath.Join(dir, link)); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"fifo and socket", func(t *testing.T, dir string) {
			makeTree(t, dir, "x/")
			if err := unix.Mkfifo(filepath.Join(dir, "x/fifo"), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"many files", func(t *testing.T, dir string) {
			for n := range 3000 {
				makeTree(t, dir, fmt.Sprintf("x/%d", n))
			}
		}},
	} {
		for name, k := range kernels {
			t.Run(tc.name+"/"+name, func(t *testing.T) {
				dir := t.TempDir()
				makeTree(t, dir, "neighbour/kept", "xx")
				tc.prepare(t, dir)
				if err := remove(t.Context(), k, dir, "x"); err != nil {
					t.Fatal(err)
				}
				if exists(t, filepath.Join(dir, "x")) {
					t.Error("x is still there")
				}
				for _, kept := range []string{"neighbour/kept", "xx"} {
					if !exists(t, filepath.Join(dir, kept)) {
						t.Errorf("%s is gone", kept)
					}
				}
			})
		}
	}
}

func TestMissingParentIsSuccess(t *testing.T) {
	if err := Remove(t.Context(), filepath.Join(t.TempDir(), "a", "b"), "c"); err != nil {
		t.Fatal(err)
	}
}

func TestRefusesNamesThatAreNone(t *testing.T) {
	dir := t.TempDir()
	makeTree(t, dir, "a/b/kept")
	for _, name := range []string{"", ".", "..", "a/b", "/", "../a", "b/", "x\x00"} {
		if err := Remove(t.Context(), filepath.Join(dir, "a"), name); err == nil {
			t.Errorf("Remove(%q) succeeded", name)
		}
	}
	if !exists(t, filepath.Join(dir, "a/b/kept")) {
		t.Error("something was deleted")
	}
}

// The tree is deeper than a path may be long and than files may be open.
func TestVeryDeepTree(t *testing.T) {
	const depth = 3000
	parent := t.TempDir()
	fd, err := unix.Open(parent, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for level := range depth {
		name := "deep"
		if level > 0 {
			name = strings.Repeat("d", 20)
		}
		if err := unix.Mkdirat(fd, name, 0o755); err != nil {
			t.Fatal(err)
		}
		below, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		fd = below
	}
	unix.Close(fd)
	before := openDescriptors(t)
	most := 0
	ctx := &observedContext{Context: t.Context(), observe: func() { most = max(most, openDescriptors(t)) }, every: 500}
	if err := Remove(ctx, parent, "deep"); err != nil {
		t.Fatal(err)
	}
	if exists(t, filepath.Join(parent, "deep")) {
		t.Error("it is still there")
	}
	if used := most - before; used > maxOpen+8 {
		t.Errorf("%d descriptors were open", used)
	}
	if after := openDescriptors(t); after > before {
		t.Errorf("%d descriptors were left open", after-before)
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	dir, err := os.Open("/proc/self/fd") // unlike ReadDir this also has Go's poller open its own, which stay
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// observedContext calls observe at every n-th look at Err.
type observedContext struct {
	context.Context
	observe func()
	every   int
	calls   int
}

func (c *observedContext) Err() error {
	if c.calls++; c.calls%c.every == 0 {
		c.observe()
	}
	return c.Context.Err()
}

func TestEndedContextStops(t *testing.T) {
	dir := t.TempDir()
	for n := range 100 {
		makeTree(t, dir, fmt.Sprintf("x/%d/file", n))
	}
	cause := errors.New("the agent stops")
	ctx, cancel := context.WithCancelCause(t.Context())
	observed := &observedContext{Context: ctx, every: 50, observe: func() { cancel(cause) }}
	if err := Remove(observed, dir, "x"); !errors.Is(err, context.Canceled) && !errors.Is(err, cause) {
		t.Fatalf("err = %v", err)
	}
	left, err := os.ReadDir(filepath.Join(dir, "x"))
	if err != nil || len(left) == 0 {
		t.Fatalf("%d left, %v: the context did not stop it", len(left), err)
	}
	if err := Remove(t.Context(), dir, "x"); err != nil || exists(t, filepath.Join(dir, "x")) {
		t.Fatalf("a second call does not finish: %v", err)
	}
}

// Directories that their owner may not read, search or change are deleted all
// the same, as an ordinary user.
func TestUnreadableDirectories(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	asOrdinaryUser(t, func() {
		for name, k := range kernels {
			makeTree(t, dir, "x/none/a/b", "x/readonly/a/b", "x/nosearch/a", "x/nosearch/d/", "x/noread/a/b", "x/empty/")
			for name, mode := range map[string]fs.FileMode{
				"none/a": 0, "none": 0, "readonly/a": 0o500, "readonly": 0o500, "nosearch": 0o600, "noread": 0o300, "empty": 0, "": 0,
			} {
				defer os.Chmod(filepath.Join(dir, "x", name), 0o700)
				if name != "" {
					if err := os.Chmod(filepath.Join(dir, "x", name), mode); err != nil && mode != 0 {
						t.Error(err)
					}
				}
			}
			if err := os.Chmod(filepath.Join(dir, "x"), 0); err != nil {
				t.Error(err)
			}
			if err := remove(t.Context(), k, dir, "x"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if exists(t, filepath.Join(dir, "x")) {
				t.Errorf("%s: x is still there", name)
			}
		}
	})
}

// As in a Go module cache: opening one directory is no fight against anybody,
// however many there are.
func TestMoreReadOnlyDirectoriesThanRetries(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o777), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	asOrdinaryUser(t, func() {
		for i := range maxRetries + 1 {
			inner := filepath.Join(dir, "x", strconv.Itoa(i/100), strconv.Itoa(i))
			if err := errors.Join(os.MkdirAll(filepath.Join(inner, "a"), 0o700), os.Chmod(inner, 0o500)); err != nil {
				t.Error(err)
				return
			}
		}
		if err := Remove(t.Context(), dir, "x"); err != nil {
			t.Error(err)
		}
	})
}

// The parent is not ours: its permissions are never changed.
func TestParentsPermissionsStay(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	asOrdinaryUser(t, func() {
		makeTree(t, dir, "parent/x/a")
		parent := filepath.Join(dir, "parent")
		if err := os.Chmod(parent, 0o500); err != nil {
			t.Error(err)
		}
		if err := Remove(t.Context(), parent, "x"); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("err = %v, want a permission error", err)
		}
		if info, err := os.Stat(parent); err != nil || info.Mode().Perm() != 0o500 {
			t.Errorf("the parent's mode is %v, %v", info.Mode(), err)
		}
		os.Chmod(parent, 0o700)
	})
}

// asOrdinaryUser runs f on a thread that has no capabilities. The thread ends
// with it.
func asOrdinaryUser(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		const nobody = 65534
		// Directly, as the wrappers of the syscall package act on all threads.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			t.Errorf("setresuid: %v", errno)
			return
		}
		f()
	}()
	<-done
}

// Somebody keeps swapping a directory for a link that leads outside.
func TestRacingLinksLeadNowhere(t *testing.T) {
	for name, k := range kernels {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			makeTree(t, base, "outside/a", "outside/b/c", "outside/b/d/e")
			outside := filepath.Join(base, "outside")
			trees := filepath.Join(base, "trees")
			makeTree(t, trees, "/")
			stop, stopped := make(chan struct{}), make(chan struct{})
			var swaps atomic.Int64
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					default:
					}
					dir, link := filepath.Join(trees, "x", "dir"), filepath.Join(trees, "x", "link")
					if unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE) == nil {
						swaps.Add(1)
					}
				}
			}()
			// On a busy machine the swaps may be late.
			for round := 0; round < 100 || swaps.Load() == 0; round++ {
				makeTree(t, trees, "y/dir/b/d/e", "y/dir/a", "y/dir/b/c")
				if err := os.Symlink(outside, filepath.Join(trees, "y", "link")); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(filepath.Join(trees, "y"), filepath.Join(trees, "x")); err != nil {
					t.Fatal(err)
				}
				if err := remove(t.Context(), k, trees, "x"); err != nil {
					t.Fatal(err)
				}
			}
			close(stop)
			<-stopped
			for _, kept := range []string{"a", "b/c", "b/d/e"} {
				if !exists(t, filepath.Join(outside, kept)) {
					t.Errorf("outside/%s was deleted", kept)
				}
			}
		})
	}
}

func BenchmarkRemove(b *testing.B) {
	for _, bench := range []struct {
		name   string
		remove func(parent, name string) error
	}{
		{"removetree", func(parent, name string) error { return Remove(b.Context(), parent, name) }},
		{"os.RemoveAll", func(parent, name string) error { return os.RemoveAll(filepath.Join(parent, name)) }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			dir := b.TempDir()
			for n := 0; n < b.N; n++ {
				b.StopTimer()
				name := fmt.Sprint(n)
				for i := range 1000 {
					makeTree(b, dir, fmt.Sprintf("%s/%d/%d", name, i%10, i))
				}
				b.StartTimer()
				if err := bench.remove(dir, name); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
