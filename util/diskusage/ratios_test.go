package diskusage

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/barewalk"
	"github.com/podvol/podvol/util/testenv/figures"
)

// plainWalk is what the kubelet does (pkg/volume/util/fs, DiskUsage): the same
// question asked with filepath.Walk.
func plainWalk(dir string) (Usage, error) {
	var usage Usage
	seen := make(map[fileID]struct{})
	var root *syscall.Stat_t
	err := filepath.Walk(dir, func(path string, info fs.FileInfo, err error) error {
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		if root == nil {
			root = st
		}
		if st.Dev != root.Dev {
			return filepath.SkipDir
		}
		if st.Nlink > 1 && !info.IsDir() {
			id := fileID{dev: st.Dev, ino: st.Ino}
			if _, ok := seen[id]; ok {
				return nil
			}
			seen[id] = struct{}{}
		}
		usage.Bytes += st.Blocks * blockSize
		usage.Inodes++
		return nil
	})
	return usage, err
}

func du(tb testing.TB, dir string) Usage {
	tb.Helper()
	out, err := exec.CommandContext(tb.Context(), "du", "-s", "-x", "-B512", dir).Output()
	if err != nil {
		tb.Fatal(err)
	}
	blocks, err := strconv.ParseInt(strings.Fields(string(out))[0], 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return Usage{Bytes: blocks * blockSize}
}

// bareCalls are the calls that a walk makes for each file.
func bareCalls(tb testing.TB, dirs []string) {
	barewalk.Each(tb, dirs, func(c *barewalk.Caller, dirfd uintptr, name unsafe.Pointer) {
		var st unix.Statx_t
		const mask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_NLINK | unix.STATX_GID | unix.STATX_INO | unix.STATX_BLOCKS | unix.STATX_MNT_ID
		c.Do(unix.SYS_STATX, dirfd, uintptr(name), unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, mask, uintptr(unsafe.Pointer(&st)))
	})
}

// contender is one way to measure a tree.
type contender struct {
	name string
	run  func(tb testing.TB, dir string) Usage
}

func contenders() []contender {
	walkWith := func(workers int) func(tb testing.TB, dir string) Usage {
		return func(tb testing.TB, dir string) Usage {
			usage, err := measure(tb.Context(), dir, options{workers: workers})
			if err != nil {
				tb.Fatal(err)
			}
			return usage
		}
	}
	return []contender{
		{"du -s", du},
		{"filepath.Walk", func(tb testing.TB, dir string) Usage {
			usage, err := plainWalk(dir)
			if err != nil {
				tb.Fatal(err)
			}
			return usage
		}},
		{"one worker", walkWith(1)},
		{"Walk", walkWith(min(runtime.GOMAXPROCS(0), maxWorkers))},
	}
}

// manyFiles makes a tree with this many files, a hundred in a directory, and
// with some hard links.
func manyFiles(tb testing.TB, files int) string {
	tb.Helper()
	base := tb.TempDir()
	for n := range files / 100 {
		dir := filepath.Join(base, fmt.Sprint(n/50), fmt.Sprint(n%50))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			tb.Fatal(err)
		}
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			tb.Fatal(err)
		}
		for m := range 100 {
			name := fmt.Sprintf("file-%02d", m)
			if m == 99 { // a hard link
				if err := unix.Linkat(fd, "file-00", fd, name, 0); err != nil {
					tb.Fatal(err)
				}
				continue
			}
			if err := unix.Mknodat(fd, name, unix.S_IFREG|0o644, 0); err != nil {
				tb.Fatal(err)
			}
			if m%10 == 0 {
				if err := os.WriteFile(filepath.Join(dir, name), []byte("some content"), 0o644); err != nil {
					tb.Fatal(err)
				}
			}
		}
		unix.Close(fd)
	}
	// What is delayed would be allocated while it is measured.
	fd, err := unix.Open(base, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Syncfs(fd); err != nil {
		tb.Fatal(err)
	}
	return base
}

// TestRatios measures a tree of 100,000 files in turn by all ways, so that all
// meet the same weather, and prints ratios of medians and of the fastest
// rounds:
//
//	go test ./util/diskusage -run Ratios -v
//
// The limits are for the fastest rounds, since what disturbs a round only ever
// makes it slower, and for two processors.
func TestRatios(t *testing.T) { figures.EachFileSystem(t, measureWalks) }

func measureWalks(t *testing.T) {
	_, asserted := figures.Slack(t)
	rounds, files := 3, 10_000
	if asserted || testing.Verbose() {
		rounds, files = 15, 100_000
	}
	dir := manyFiles(t, files)
	answers := make(map[string]Usage)
	dirs := barewalk.Directories(t, dir)
	ways := []figures.Way{{Name: "bare calls", Run: func() { bareCalls(t, dirs) }}}
	for _, c := range contenders() {
		ways = append(ways, figures.Way{Name: c.name, Run: func() { answers[c.name] = c.run(t, dir) }})
	}
	took := figures.InTurn(t, rounds, ways...)
	want := answers["filepath.Walk"]
	for _, c := range contenders() {
		if got := answers[c.name]; got.Bytes != want.Bytes || got.Inodes != want.Inodes && c.name != "du -s" {
			t.Errorf("%s says %+v, want %+v", c.name, got, want)
		}
	}
	for _, r := range []struct {
		to     string
		faster float64 // so many times
	}{{"du -s", 1.85}, {"filepath.Walk", 3}, {"bare calls", 1 / 1.25}} {
		ours, theirs := took["Walk"], took[r.to]
		what := fmt.Sprintf("disk usage of %d files", files)
		wall := figures.Times(what, figures.Wall, ours.Median.Wall, r.to, theirs.Median.Wall, 1/r.faster)
		wall.Fastest = ours.Fastest.Wall.Seconds() / theirs.Fastest.Wall.Seconds()
		figures.Report(t, wall, figures.Times(what, figures.CPU, ours.Median.CPU, r.to, theirs.Median.CPU+theirs.Median.Children, 0))
	}
}

func BenchmarkWalk(b *testing.B) {
	dir := manyFiles(b, 20_000)
	for _, c := range contenders() {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				c.run(b, dir)
			}
		})
	}
}
