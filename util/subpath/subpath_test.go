package subpath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// bothWays runs a test with openat2 and with the walk that replaces it, also as other
// systems walk.
func bothWays(t *testing.T, f func(t *testing.T, k kernel)) {
	t.Helper()
	linuxWays(t, f)
	t.Run("other systems", func(t *testing.T) { f(t, otherSystem()) })
}

// linuxWays is bothWays for what only Linux has.
func linuxWays(t *testing.T, f func(t *testing.T, k kernel)) {
	t.Helper()
	t.Run("openat2", func(t *testing.T) { f(t, system()) })
	t.Run("walk", func(t *testing.T) { f(t, walkOnly()) })
}

// otherSystem is a kernel with POSIX' calls alone.
func otherSystem() kernel {
	k := deniedUnshare()
	k.openat2, k.opener = nil, byName{}
	return k
}

func walkOnly() kernel {
	k := system()
	k.openat2 = nil
	return k
}

// newVolume returns the root of a volume, open, with something beside it that
// belongs to the host.
func newVolume(t testing.TB) *os.File {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "volume"), 0o755))
	must(t, os.MkdirAll(filepath.Join(dir, "host", "secrets"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "host", "secrets", "key"), []byte("the host's"), 0o644))
	return openRoot(t, filepath.Join(dir, "volume"))
}

func openRoot(t testing.TB, dir string) *os.File {
	t.Helper()
	root, err := os.Open(dir)
	must(t, err)
	t.Cleanup(func() { root.Close() })
	return root
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func in(root *os.File, name string) string { return filepath.Join(root.Name(), name) }

func mkdir(t testing.TB, root *os.File, names ...string) {
	t.Helper()
	for _, name := range names {
		must(t, os.MkdirAll(in(root, name), 0o755))
	}
}

func touch(t testing.TB, root *os.File, names ...string) {
	t.Helper()
	for _, name := range names {
		must(t, os.MkdirAll(filepath.Dir(in(root, name)), 0o755))
		must(t, os.WriteFile(in(root, name), []byte(name), 0o644))
	}
}

func link(t testing.TB, root *os.File, name, target string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(in(root, name)), 0o755))
	must(t, os.Symlink(target, in(root, name)))
}

// sameAs fails unless the file that was opened is the one with this name.
func sameAs(t testing.TB, got *os.File, name string) {
	t.Helper()
	info, err := got.Stat()
	must(t, err)
	want, err := os.Stat(name)
	must(t, err)
	if !os.SameFile(info, want) {
		t.Errorf("%s was opened, want %s", got.Name(), name)
	}
}

func TestOpen(t *testing.T) {
	bothWays(t, func(t *testing.T, k kernel) {
		root := newVolume(t)
		mkdir(t, root, "a/b/c", "..c")
		touch(t, root, "a/file", "a/b/c/deep")
		link(t, root, "to-dir", "a/b")
		link(t, root, "to-file", "a/file")
		link(t, root, "a/b/up", "../file")
		link(t, root, "a/b/up-and-down", "./..//b/../../a/./b/c/")
		link(t, root, "chain", "to-dir/up-and-down/deep")
		link(t, root, "to-root", ".")
		link(t, root, "a/to-root", "..")
		must(t, unix.Mkfifo(in(root, "fifo"), 0o600))
		for path, want := range map[string]string{
			".":                           ".",
			"./":                          ".",
			"a":                           "a",
			"a/":                          "a",
			"a//b/./c":                    "a/b/c",
			"..c":                         "..c",
			"a/file":                      "a/file",
			"a/b/c/deep":                  "a/b/c/deep",
			"to-dir":                      "a/b",
			"to-dir/c/deep":               "a/b/c/deep",
			"to-file":                     "a/file",
			"a/b/up":                      "a/file",
			"a/b/up-and-down":             "a/b/c",
			"chain":                       "a/b/c/deep",
			"to-root":                     ".",
			"to-root/to-root/a/to-root/a": "a",
			"fifo":                        "fifo", // and does not wait for a writer
		} {
			got, err := k.open(root, path)
			_, reads := k.opener.(byName)
			if reads && path == "fifo" && errors.Is(err, errors.ErrUnsupported) {
				continue
			}
			if err != nil {
				t.Errorf("Open(%q): %v", path, err)
				continue
			}
			sameAs(t, got, in(root, want))
			if flags, err := unix.FcntlInt(got.Fd(), unix.F_GETFL, 0); err != nil || flags&unix.O_PATH == 0 != reads {
				t.Errorf("Open(%q) has flags %o, %v, want O_PATH: %v", path, flags, err, !reads)
			}
			got.Close()
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	bothWays(t, func(t *testing.T, k kernel) {
		root := newVolume(t)
		mkdir(t, root, "dir/sub")
		touch(t, root, "file")
		link(t, root, "file-as-dir", "file/")
		link(t, root, "beneath-file", "dir/../file/..")
		link(t, root, "dangling", "dir/missing")
		link(t, root, "loop", "loop")
		link(t, root, "ping", "dir/pong")
		link(t, root, "dir/pong", "../ping")
		for path, want := range map[string]error{
			"missing":         fs.ErrNotExist,
			"dir/missing/sub": fs.ErrNotExist,
			"dangling":        fs.ErrNotExist,
			"file/sub":        unix.ENOTDIR,
			"file-as-dir":     unix.ENOTDIR,
			"beneath-file":    unix.ENOTDIR,
			"loop":            unix.ELOOP,
			"ping":            unix.ELOOP,
		} {
			if _, err := k.open(root, path); !errors.Is(err, want) || !strings.Contains(err.Error(), root.Name()) {
				t.Errorf("Open(%q) = %v, want %v and the volume's place", path, err, want)
			}
		}
		_, err := k.open(root, "file/sub")
		if file, ok := errors.AsType[*NotDirectoryError](err); !ok || file.Element != "file" || file.Path != "file/sub" {
			t.Errorf("err = %#v, want the element that is no directory", err)
		}
	})
}

// The kernel follows 40 links and no more.
func TestFortyLinks(t *testing.T) {
	bothWays(t, func(t *testing.T, k kernel) {
		root := newVolume(t)
		touch(t, root, "0")
		previous := "0"
		for n := range 41 {
			next := strings.Repeat("l", n+1)
			link(t, root, next, previous)
			previous = next
		}
		got, err := k.open(root, strings.Repeat("l", 40))
		must(t, err)
		sameAs(t, got, in(root, "0"))
		got.Close()
		if _, err := k.open(root, strings.Repeat("l", 41)); !errors.Is(err, unix.ELOOP) {
			t.Errorf("41 links: %v, want ELOOP", err)
		}
	})
}

func TestInvalidPaths(t *testing.T) {
	bothWays(t, func(t *testing.T, k kernel) {
		root := newVolume(t)
		for _, path := range []string{
			"", "/", "/etc", "..", "../host", "a/..", "a/../b", "a\x00b", strings.Repeat("a/", 2048),
		} {
			_, openErr := k.open(root, path)
			_, makeErr := k.openOrMake(t.Context(), root, path)
			for _, err := range []error{Check(path), openErr, makeErr, k.makePoint(t.Context(), root, path, true)} {
				if refused, ok := errors.AsType[*InvalidPathError](err); !ok || refused.Path != path {
					t.Errorf("%.20q: err = %v", path, err)
				}
			}
		}
		for _, path := range []string{".", "a", "...", "..a", "a..", strings.Repeat("a/", 2047)} {
			if err := Check(path); err != nil {
				t.Errorf("%.20q: err = %v", path, err)
			}
		}
	})
}
