package subpath

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/testtool"
)

var resolutionsFlag = flag.Int("subpath.resolutions", 0, "how often TestRace resolves a path, each way (200000, with -short 20000)")

// resolutions is the number that the command line asks for.
func resolutions() int {
	switch {
	case *resolutionsFlag > 0:
		return *resolutionsFlag
	case testtool.Shortened():
		return 20_000
	}
	return 200_000
}

// swapper is a container that plays with its volume: directories, links out
// and links that stay change places without end.
type swapper struct {
	stop atomic.Bool
	done sync.WaitGroup
	// swaps counts, failed is the first failure.
	swaps  atomic.Int64
	failed atomic.Pointer[error]
}

func startSwapper(t *testing.T, root *os.File, pairs [][2]string) *swapper {
	s := &swapper{}
	s.done.Go(func() {
		for !s.stop.Load() {
			for _, pair := range pairs {
				err := exchange(root, pair[0], pair[1])
				if errors.Is(err, fs.ErrNotExist) { // what is being made, before it was
					continue
				}
				if err != nil {
					s.failed.Store(&err)
					return
				}
				s.swaps.Add(1)
			}
		}
	})
	t.Cleanup(s.end)
	return s
}

func (s *swapper) end() {
	s.stop.Store(true)
	s.done.Wait()
}

func (s *swapper) check(t *testing.T) {
	t.Helper()
	s.end()
	if err := s.failed.Load(); err != nil {
		t.Errorf("the swapper failed: %v", *err)
	}
}

// counted counts calls and refusals of openat2, and those in a row of one resolution,
// before which row is set to 0.
type counted struct{ calls, again, row, most atomic.Int64 }

func (c *counted) kernel() kernel {
	k := system()
	k.openat2 = func(dir int, path string, how *unix.OpenHow) (int, error) {
		fd, err := unix.Openat2(dir, path, how)
		c.calls.Add(1)
		if !errors.Is(err, unix.EAGAIN) {
			c.row.Store(0)
			return fd, err
		}
		c.again.Add(1)
		c.most.Store(max(c.most.Load(), c.row.Add(1)))
		return fd, err
	}
	return k
}

// raced is a volume in which a swapper finds directories, links out and links
// that stay, and the identity of everything that belongs to the volume.
func raced(t *testing.T) (root *os.File, inside map[[2]uint64]bool, pairs [][2]string) {
	root = newVolume(t)
	touch(t, root, "a/b/c/file", "x/b/c/file")
	link(t, root, "out-absolute", filepath.Join(filepath.Dir(root.Name()), "host"))
	link(t, root, "a/out-relative", "../../host")
	link(t, root, "a/b/up", "../../a/b/c")
	link(t, root, "a/b/c/up", "../../b/./../b/c")
	link(t, root, "x/out", "../../../../../../../../..")
	inside = make(map[[2]uint64]bool)
	must(t, filepath.WalkDir(root.Name(), func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		must(t, err)
		must(t, unix.Lstat(path, &st))
		inside[[2]uint64{st.Dev, st.Ino}] = true
		return nil
	}))
	return root, inside, [][2]string{
		{"a/b", "a/out-relative"}, {"a", "out-absolute"}, {"a", "out-absolute"}, {"a/b", "a/out-relative"},
		{"a/b/c", "x"}, {"a/b/c", "x"}, {"x/b", "x/out"}, {"x/b", "x/out"},
	}
}

// Whatever a container exchanges meanwhile, nothing is ever opened that is not
// the volume's.
func TestRace(t *testing.T) {
	var count counted
	for name, k := range map[string]kernel{"openat2": count.kernel(), "walk": walkOnly(), "other systems": otherSystem()} {
		t.Run(name, func(t *testing.T) {
			root, inside, pairs := raced(t)
			paths := []string{
				"a/b/c/file", "a/b/c", "a/b", "a", "a/b/up/file", "a/b/c/up/file", "x/b/c/file", "a/b/c/up/up/up",
				"a/out-relative/secrets/key", "a/out-relative/c", "out-absolute/b/c", "out-absolute/secrets", "x/out/etc",
			}
			swaps := startSwapper(t, root, pairs)
			results := make(map[string]int)
			// On a busy machine the swapper may be late.
			for n := 0; n < resolutions() || results["escape"] == 0 && n < 100*resolutions(); n++ {
				path := paths[n%len(paths)]
				count.row.Store(0)
				file, err := k.open(root, path)
				results[outcome(err)]++
				if err != nil {
					continue
				}
				st, err := stat(int(file.Fd()))
				must(t, err)
				if !inside[[2]uint64{st.Dev, st.Ino}] {
					t.Fatalf("resolution %d: %s led out of the volume", n, path)
				}
				file.Close()
			}
			swaps.check(t)
			t.Logf("%v, %d exchanges; openat2: %d calls, %d EAGAIN, at most %d in a row",
				results, swaps.swaps.Load(), count.calls.Load(), count.again.Load(), count.most.Load())
			for _, want := range []string{"opened", "escape"} {
				if results[want] == 0 {
					t.Errorf("never %s: there was no race", want)
				}
			}
			if other := results["other"]; other > 0 {
				t.Errorf("%d errors that say neither what is missing nor what leads out", other)
			}
		})
	}
	if count.most.Load() > kernelTries {
		t.Errorf("openat2 was tried %d times in a row, more than %d", count.most.Load(), kernelTries)
	}
}

func outcome(err error) string {
	_, busy := errors.AsType[*BusyError](err)
	_, dangling := errors.AsType[*DanglingError](err)
	switch {
	case err == nil:
		return "opened"
	case isEscape(err):
		return "escape"
	case busy:
		return "busy"
	case dangling:
		return "dangling"
	case errors.Is(err, fs.ErrNotExist):
		return "missing"
	case errors.Is(err, unix.ENOTDIR):
		return "no directory"
	case errors.Is(err, unix.ELOOP):
		return "too many links"
	case errors.Is(err, unix.ENAMETOOLONG):
		return "name too long"
	}
	return "other"
}

// What is made is made in the volume, and what was there keeps its mode.
func TestRaceWhileMaking(t *testing.T) {
	for name, k := range map[string]kernel{"openat2": system(), "walk": walkOnly(), "shared umask": deniedUnshare(), "other systems": otherSystem()} {
		t.Run(name, func(t *testing.T) {
			root, _, pairs := raced(t)
			touch(t, root, "private/key")
			must(t, unix.Chmod(in(root, "private"), 0o700))
			must(t, unix.Chmod(root.Name(), 0o2777))
			swaps := startSwapper(t, root, append(pairs, [2]string{"private", "x"}, [2]string{"private", "x"}))
			results := make(map[string]int)
			rounds := max(200, resolutions()/1000)
			for n := 0; n < rounds || results["escape"] == 0 && n < 100*rounds; n++ {
				for _, dir := range []string{"a/b/c", "a/b", "a", "x/b/c"} {
					file, err := k.openOrMake(t.Context(), root, fmt.Sprintf("%s/new-%d/below", dir, n))
					if results[outcome(err)]++; err == nil {
						file.Close()
					}
					err = k.makePoint(t.Context(), root, fmt.Sprintf("%s/point-%d/etc", dir, n), n%2 == 0)
					results[outcome(err)]++
				}
			}
			swaps.check(t)
			t.Logf("%v, %d exchanges", results, swaps.swaps.Load())
			hostUntouched(t, root)
			for _, dir := range []string{"a", "a/b", "a/b/c", "private"} {
				if got := mode(t, in(root, dir)); got != 0o755 && got != 0o700 {
					t.Errorf("%s has mode %o now", dir, got)
				}
			}
			if results["opened"] == 0 || results["escape"] == 0 {
				t.Errorf("there was no race")
			}
			if other := results["other"]; other > 0 {
				t.Errorf("%d errors that say neither what is missing nor what leads out", other)
			}
		})
	}
}

// A container exchanges what is being made itself, for a link out and for a
// directory that hides something.
func TestRaceForWhatIsMade(t *testing.T) {
	for name, k := range map[string]kernel{"openat2": system(), "walk": walkOnly(), "shared umask": deniedUnshare(), "other systems": otherSystem()} {
		t.Run(name, func(t *testing.T) {
			root := newVolume(t)
			touch(t, root, "private/key")
			must(t, unix.Chmod(in(root, "private"), 0o700))
			must(t, unix.Chmod(root.Name(), 0o2777))
			link(t, root, "out", "../host")
			volume, err := os.OpenRoot(root.Name())
			must(t, err)
			defer volume.Close()
			pairs := [][2]string{{"new", "out"}, {"new", "private"}, {"new/below", "out"}}
			swaps := startSwapper(t, root, slices.Concat(pairs, pairs))
			results := make(map[string]int)
			for range max(200, resolutions()/1000) {
				file, err := k.openOrMake(t.Context(), root, "new/below/further")
				if results[outcome(err)]++; err == nil {
					file.Close()
				}
				err = k.makePoint(t.Context(), root, "new/below/etc", false)
				results[outcome(err)]++
				for _, name := range []string{"new", "out"} { // whatever they are now
					info, err := volume.Lstat(name + "/key")
					if err == nil && info.Mode().IsRegular() { // it is called private, too
						continue
					}
					_ = volume.RemoveAll(name)
				}
				_ = volume.Symlink("../host", "out")
			}
			swaps.check(t)
			t.Logf("%v, %d exchanges", results, swaps.swaps.Load())
			hostUntouched(t, root)
			for _, name := range []string{"new", "out", "private", "new/below"} {
				if _, err := volume.Stat(name + "/key"); err == nil && mode(t, in(root, name)) != 0o700 {
					t.Errorf("what hides something has mode %o now", mode(t, in(root, name)))
				}
			}
			if other := results["other"]; results["opened"] == 0 || other > 0 {
				t.Errorf("%v", results)
			}
		})
	}
}

// Two agents that make the same directories both succeed.
func TestMakingAtTheSameTime(t *testing.T) {
	bothWays(t, func(t *testing.T, k kernel) {
		root := newVolume(t)
		for n := range 200 {
			var wait sync.WaitGroup
			for range 4 {
				wait.Go(func() {
					file, err := k.openOrMake(t.Context(), root, fmt.Sprintf("%d/a/b", n))
					if err != nil {
						t.Error(err)
						return
					}
					file.Close()
					if err := k.makePoint(t.Context(), root, fmt.Sprintf("%d/a/c/file", n), false); err != nil {
						t.Error(err)
					}
				})
			}
			wait.Wait()
		}
	})
}

// A machine on which something is always renamed makes the kernel give up each
// time; then the walk answers, which needs no rest.
func TestAKernelThatNeverComesToRest(t *testing.T) {
	root := newVolume(t)
	mkdir(t, root, "dir")
	link(t, root, "out", "..")
	for disturbed, want := range map[int]int{kernelTries - 1: kernelTries, kernelTries: kernelTries, 1 << 30: kernelTries, 0: 1} {
		k, calls := system(), 0
		k.openat2 = func(dir int, path string, how *unix.OpenHow) (int, error) {
			if calls++; calls <= disturbed {
				return -1, unix.EAGAIN
			}
			return unix.Openat2(dir, path, how)
		}
		got, err := k.open(root, "dir")
		must(t, err)
		sameAs(t, got, in(root, "dir"))
		got.Close()
		if calls != want {
			t.Errorf("disturbed %d times, the kernel is asked %d times, want %d", disturbed, calls, want)
		}
		calls = 0
		if _, err := k.open(root, "out"); !isEscape(err) {
			t.Errorf("disturbed %d times: %v", disturbed, err)
		}
	}
}

// What others change while it is made is made once they rest, after any number of
// tries, or until the context ends.
func TestMakingWhatNeverComesToRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := newVolume(t)
		mkdir(t, root, "dir")
		for _, gone := range []int{0, 3, 10_000} { // so often it is there and then it is not
			k, looks := system(), 0
			ctx, cancel := context.WithCancel(t.Context())
			k.openat2 = func(dir int, path string, how *unix.OpenHow) (int, error) {
				if path != "dir" {
					return unix.Openat2(dir, path, how)
				}
				if looks++; looks <= gone {
					return -1, unix.ENOENT
				}
				if gone > 5000 {
					cancel()
					return -1, unix.ENOENT
				}
				return unix.Openat2(dir, path, how)
			}
			got, err := k.openOrMake(ctx, root, "dir")
			if gone > 5000 {
				busy, ok := errors.AsType[*BusyError](err)
				if !ok || busy.Path != "dir" || !errors.Is(err, unix.EAGAIN) || !errors.Is(err, context.Canceled) {
					t.Errorf("after %d looks: %v", looks, err)
				}
			} else if must(t, err); err == nil {
				sameAs(t, got, in(root, "dir"))
				got.Close()
			}
			cancel()
		}
	})
}

// Kernels and filters without openat2 are answered by the walk.
func TestWithoutOpenat2(t *testing.T) {
	for _, refusal := range []error{unix.ENOSYS, unix.EPERM} {
		root := newVolume(t)
		mkdir(t, root, "dir")
		link(t, root, "out", "..")
		k := system()
		k.openat2 = func(int, string, *unix.OpenHow) (int, error) { return -1, refusal }
		got, err := k.open(root, "dir")
		must(t, err)
		sameAs(t, got, in(root, "dir"))
		got.Close()
		if _, err := k.open(root, "out"); !isEscape(err) {
			t.Errorf("openat2 says %v: %v", refusal, err)
		}
	}
}

// A kernel that begins a path anew after a rename counts the links of both ways.
func TestAKernelThatCountsLinksTwice(t *testing.T) {
	root := newVolume(t)
	touch(t, root, "file")
	link(t, root, "link", "file")
	link(t, root, "loop", "loop")
	k := system()
	k.openat2 = func(int, string, *unix.OpenHow) (int, error) { return -1, unix.ELOOP }
	got, err := k.open(root, "link")
	must(t, err)
	sameAs(t, got, in(root, "file"))
	got.Close()
	if _, err := k.open(root, "loop"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a loop: %v", err)
	}
}
