package subpath

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func mode(t testing.TB, path string) uint32 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	return st.Mode & modeBits
}

// withUmask is for the whole process, so such tests do not run in parallel.
func withUmask(mask int, f func()) {
	defer unix.Umask(unix.Umask(mask))
	f()
}

// deniedUnshare is a kernel on which threads share their umask.
func deniedUnshare() kernel {
	k := system()
	k.unshare = func(int) error { return unix.EPERM }
	return k
}

func TestOpenOrMakeGivesTheRootsMode(t *testing.T) {
	for name, k := range map[string]kernel{"openat2": system(), "walk": walkOnly(), "shared umask": deniedUnshare(), "other systems": otherSystem()} {
		t.Run(name, func(t *testing.T) {
			for _, want := range []uint32{0o755, 0o777, 0o2775, 0o3777, 0o700, 0o750} {
				root := newVolume(t)
				mkdir(t, root, "existing")
				must(t, unix.Chmod(root.Name(), want))
				withUmask(0o077, func() {
					for _, path := range []string{"a/b/c", "existing/new", "a/b/d"} {
						got, err := k.openOrMake(t.Context(), root, path)
						must(t, err)
						sameAs(t, got, in(root, path))
						got.Close()
					}
				})
				for _, path := range []string{"a", "a/b", "a/b/c", "a/b/d", "existing/new"} {
					if got := mode(t, in(root, path)); got != want {
						t.Errorf("%s has mode %o, want the root's %o", path, got, want)
					}
				}
				if got := mode(t, in(root, "existing")); got != 0o755 {
					t.Errorf("what existed has mode %o now", got)
				}
				must(t, unix.Chmod(root.Name(), 0o755))
			}
		})
	}
}

func TestOpenOrMakeLeavesWhatExists(t *testing.T) {
	bothWays(t, func(t *testing.T, k kernel) {
		root := newVolume(t)
		touch(t, root, "dir/file")
		link(t, root, "link", "dir")
		for path, want := range map[string]string{"dir/file": "dir/file", "link/file": "dir/file", "link/new": "dir/new", ".": "."} {
			got, err := k.openOrMake(t.Context(), root, path)
			must(t, err)
			sameAs(t, got, in(root, want))
			got.Close()
		}
		link(t, root, "dangling", "nowhere")
		for _, path := range []string{"dangling", "dangling/sub"} {
			_, err := k.openOrMake(t.Context(), root, path)
			if dangling, ok := errors.AsType[*DanglingError](err); !ok || dangling.Element != "dangling" || !errors.Is(err, os.ErrNotExist) {
				t.Errorf("OpenOrMake(%q) = %v, want the dangling link", path, err)
			}
		}
		if _, err := os.Lstat(in(root, "nowhere")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("something was made at the end of a dangling link: %v", err)
		}
		if _, err := k.openOrMake(t.Context(), root, "dir/file/sub"); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("beneath a file: %v", err)
		}
	})
}

func TestMakePoint(t *testing.T) {
	for name, k := range map[string]kernel{"openat2": system(), "walk": walkOnly(), "shared umask": deniedUnshare(), "other systems": otherSystem()} {
		t.Run(name, func(t *testing.T) {
			root := newVolume(t)
			must(t, unix.Chmod(root.Name(), 0o777))
			withUmask(0o027, func() {
				for range 2 { // the second time they exist
					must(t, k.makePoint(t.Context(), root, "dir/nested/double", true))
					must(t, k.makePoint(t.Context(), root, "dir/etc/config", false))
				}
			})
			for _, path := range []string{"dir", "dir/nested", "dir/nested/double", "dir/etc"} {
				if got := mode(t, in(root, path)); got != 0o755 {
					t.Errorf("%s has mode %o", path, got)
				}
			}
			info, err := os.Stat(in(root, "dir/etc/config"))
			if err != nil || !info.Mode().IsRegular() || info.Size() != 0 {
				t.Errorf("the file is %v, %v", info, err)
			}
			for path, dir := range map[string]bool{"dir/nested": false, "dir/etc/config": true} {
				err := k.makePoint(t.Context(), root, path, dir)
				if kind, ok := errors.AsType[*KindError](err); !ok || kind.Dir != dir || kind.Path != path {
					t.Errorf("MakePoint(%q, %v) = %v", path, dir, err)
				}
			}
			link(t, root, "out", filepath.Dir(root.Name()))
			if err := k.makePoint(t.Context(), root, "out/new", true); !isEscape(err) {
				t.Errorf("through a link out: %v", err)
			}
		})
	}
}

// In a volume that was removed nothing can be made, which is said at once: nothing
// will change that.
func TestMakingInAVolumeThatIsGone(t *testing.T) {
	bothWays(t, func(t *testing.T, k kernel) {
		root := newVolume(t)
		must(t, os.Remove(root.Name()))
		for _, path := range []string{"a", "a/b", "a/b/c"} {
			if _, err := k.openOrMake(t.Context(), root, path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("OpenOrMake(%q): %v", path, err)
			}
			for _, dir := range []bool{true, false} {
				if err := k.makePoint(t.Context(), root, path, dir); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("MakePoint(%q, %v): %v", path, dir, err)
				}
			}
		}
	})
}

// The group of a volume with fsGroup is inherited by what is made in it.
func TestMakePointInheritsTheGroup(t *testing.T) {
	root := newVolume(t)
	must(t, unix.Chmod(root.Name(), 0o2770))
	must(t, MakePoint(t.Context(), root, "a/b", true))
	for _, path := range []string{"a", "a/b"} {
		if got := mode(t, in(root, path)); got != 0o2755 {
			t.Errorf("%s has mode %o", path, got)
		}
	}
}

func isEscape(err error) bool {
	_, ok := errors.AsType[*EscapeError](err)
	return ok && errors.Is(err, unix.EXDEV)
}
