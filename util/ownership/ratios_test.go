package ownership

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/barewalk"
	"github.com/podvol/podvol/util/testenv/figures"
)

// plainWalk is what the kubelet does.
func plainWalk(root string, gid int) error {
	return filepath.Walk(root, func(path string, info fs.FileInfo, err error) error {
		if err != nil {
			return err
		}
		if err := os.Lchown(path, -1, gid); err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return nil
		}
		mode := info.Mode() | 0o660
		if info.IsDir() {
			mode |= fs.ModeSetgid | 0o110
		}
		return os.Chmod(path, mode)
	})
}

// makeTree makes so many files in directories of a thousand.
func makeTree(tb testing.TB, root string, files int) {
	tb.Helper()
	for n := range files {
		dir := filepath.Join(root, fmt.Sprint(n/10_000), fmt.Sprint(n/1000))
		if n%1000 == 0 {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				tb.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%06d", n)), nil, 0o644); err != nil {
			tb.Fatal(err)
		}
	}
}

// unmake makes a tree as makeTree did. Nothing is deleted between the rounds:
// ext4 is slow for minutes in using freed inodes again.
func unmake(tb testing.TB, root string) {
	tb.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if d.IsDir() {
			mode = 0o755
		}
		if err := os.Lchown(path, -1, os.Getegid()); err != nil {
			return err
		}
		return os.Chmod(path, mode)
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// bareCalls are the calls that a walk by descriptor makes for each file, of a tree that
// makeTree made, and for all of its directories as well.
func bareCalls(tb testing.TB, dirs []string, gid int) {
	for _, dir := range dirs {
		if err := errors.Join(os.Lchown(dir, -1, gid), os.Chmod(dir, 0o775|fs.ModeSetgid)); err != nil {
			tb.Fatal(err)
		}
	}
	none, how := new(byte), unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS}
	barewalk.Each(tb, dirs, func(c *barewalk.Caller, dirfd uintptr, name unsafe.Pointer) {
		var st unix.Stat_t
		fd := c.Do(unix.SYS_OPENAT2, dirfd, uintptr(name), uintptr(unsafe.Pointer(&how)), unsafe.Sizeof(how), 0)
		c.Do(unix.SYS_FSTAT, fd, uintptr(unsafe.Pointer(&st)), 0, 0, 0)
		c.Do(unix.SYS_FCHOWNAT, fd, uintptr(unsafe.Pointer(none)), keep, uintptr(gid), unix.AT_EMPTY_PATH)
		c.Do(unix.SYS_FCHMODAT2, fd, uintptr(unsafe.Pointer(none)), uintptr(st.Mode&0o7777|0o660), unix.AT_EMPTY_PATH, 0)
		c.Do(unix.SYS_CLOSE, fd, 0, 0, 0, 0)
	})
}

// measured are the cases, each after what comes before it.
var measured = []struct {
	name  string
	fresh bool // begins with a tree that was never given to the group
	run   func(testing.TB, string, int) error
}{
	{"plain walk", true, func(_ testing.TB, root string, gid int) error { return plainWalk(root, gid) }},
	{"plain walk again", false, func(_ testing.TB, root string, gid int) error { return plainWalk(root, gid) }},
	{"chgrp -R", true, func(tb testing.TB, root string, gid int) error {
		return exec.CommandContext(tb.Context(), "chgrp", "-R", fmt.Sprint(gid), root).Run()
	}},
	{"first", true, setTo(Options{})},
	{"again", false, setTo(Options{})},
	{"root mismatch", false, setTo(Options{OnRootMismatch: true})},
}

func setTo(o Options) func(testing.TB, string, int) error {
	return func(tb testing.TB, root string, gid int) error {
		return Set(tb.Context(), root, Group{ID: uint32(gid)}, o)
	}
}

// TestRatios measures the cases in turn, so that all meet the same weather,
// and prints ratios of medians and of the fastest rounds:
//
//	go test ./util/ownership -run Ratios -v
//
// The limits are for the fastest rounds, since what disturbs a round only ever
// makes it slower.
func TestRatios(t *testing.T) { figures.EachFileSystem(t, measureWalks) }

func measureWalks(t *testing.T) {
	_, asserted := figures.Slack(t)
	rounds, files := 1, 2000
	if asserted || testing.Verbose() {
		rounds, files = 5, 100_000
	}
	root := t.TempDir()
	gid := int(ownGroup(t))
	makeTree(t, root, files)
	dirs := barewalk.Directories(t, root)
	ways := []figures.Way{{Name: "bare calls", Prepare: func() { unmake(t, root) }, Run: func() { bareCalls(t, dirs, gid) }}}
	for _, c := range measured {
		w := figures.Way{Name: c.name, Run: func() {
			if err := c.run(t, root, gid); err != nil {
				t.Fatal(err)
			}
		}}
		if c.fresh {
			w.Prepare = func() { unmake(t, root) }
		}
		ways = append(ways, w)
	}
	took := figures.InTurn(t, rounds, ways...)
	for _, r := range []struct {
		name, to, peer string
		wall, cpu      float64 // at most
	}{
		{"first", "plain walk", "kubelet (filepath.Walk)", 1 / 2.2, 1},
		{"first", "bare calls", "bare calls", 1.2, 1.2},
		{"first", "chgrp -R", "chgrp -R", 0, 0}, // which leaves the modes as they are
		{"again", "plain walk again", "kubelet (filepath.Walk)", 1.0 / 6, 1.0 / 3},
	} {
		what, ours, theirs := fmt.Sprintf("fsGroup of %d files, %s", files, r.name), took[r.name], took[r.to]
		wall := figures.Times(what, figures.Wall, ours.Median.Wall, r.peer, theirs.Median.Wall, r.wall)
		wall.Fastest = ours.Fastest.Wall.Seconds() / theirs.Fastest.Wall.Seconds()
		figures.Report(t, wall, figures.Times(what, figures.CPU, ours.Median.CPU, r.peer, theirs.Median.CPU+theirs.Median.Children, r.cpu))
	}
	figures.Report(t, figures.Row{What: fmt.Sprintf("fsGroup of %d files, OnRootMismatch", files), Unit: figures.Wall, Ours: took["root mismatch"].Fastest.Wall.Seconds(), Limit: 50e-6})
}

func BenchmarkSet(b *testing.B) {
	root := b.TempDir()
	makeTree(b, root, 20_000)
	for _, c := range measured {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				if c.fresh {
					unmake(b, root)
				}
				b.StartTimer()
				if err := c.run(b, root, 4711); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
