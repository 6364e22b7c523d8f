package topdir_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/util/topdir"
)

// asRoot runs a test where there are devices.
func asRoot(t *testing.T, f func(t *testing.T)) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, f)
}

// newFileSystem mounts a new one and returns a directory in it.
func newFileSystem(t *testing.T, fsType string, size int64, makeIt ...string) string {
	t.Helper()
	testtool.Need(t, makeIt[0])
	device := loopdev.New(t, size)
	if out, err := exec.Command(makeIt[0], append(makeIt[1:], device.Path)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", makeIt, err, out)
	}
	dir := t.TempDir()
	if err := unix.Mount(device.Path, dir, fsType, 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func newExt4(t *testing.T, size int64, options ...string) string {
	t.Helper()
	return newFileSystem(t, "ext4", size, append([]string{"mkfs.ext4", "-q", "-F"}, options...)...)
}

func mkdir(t *testing.T, path ...string) string {
	t.Helper()
	dir := filepath.Join(path...)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// groups is the number of block groups that ten new directories and a file in
// each lie in.
func groups(t *testing.T, dir string) int {
	t.Helper()
	var system unix.Statfs_t
	if err := unix.Statfs(dir, &system); err != nil {
		t.Fatal(err)
	}
	// mkfs.ext4 makes groups of 128 MiB, and as many inodes in each.
	perGroup := system.Files / max(system.Blocks*uint64(system.Bsize)>>27, 1)
	found := map[uint64]bool{}
	for n := range 10 {
		file := filepath.Join(mkdir(t, dir, fmt.Sprint("pod", n)), "file")
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil {
			t.Fatal(err)
		}
		found[st.Ino/perGroup] = true
	}
	return len(found)
}

func TestDirectoriesAreLaidOutOverTheDisk(t *testing.T) {
	asRoot(t, func(t *testing.T) {
		root := newExt4(t, 16<<30)
		plain, marked := mkdir(t, root, "plain"), mkdir(t, root, "marked")
		for range 2 { // it may be repeated
			if err := topdir.Mark(marked); err != nil {
				t.Fatal(err)
			}
		}
		if a, b := groups(t, plain), groups(t, marked); a > 2 || b < 4 {
			t.Errorf("ten directories lie in %d block groups, and in %d where they are to be laid out", a, b)
		}
	})
}

func TestMarkKeepsOtherAttributes(t *testing.T) {
	asRoot(t, func(t *testing.T) {
		dir := newExt4(t, 64<<20)
		if out, err := exec.Command("chattr", "+A", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if err := topdir.Mark(dir); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("lsattr", "-d", dir).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		var has string
		fmt.Sscan(string(out), &has)
		for _, attribute := range "AT" {
			if !strings.ContainsRune(has, attribute) {
				t.Errorf("the attributes are %s, without %c", has, attribute)
			}
		}
	})
}

func TestOtherFileSystemsSayThatTheyDoNotHaveIt(t *testing.T) {
	asRoot(t, func(t *testing.T) {
		tmpfs := t.TempDir()
		if err := unix.Mount("tmpfs", tmpfs, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(tmpfs, unix.MNT_DETACH) })
		for what, dir := range map[string]string{
			"tmpfs": tmpfs,
			"xfs":   newFileSystem(t, "xfs", 512<<20, "mkfs.xfs", "-q"),
			"btrfs": newFileSystem(t, "btrfs", 512<<20, "mkfs.btrfs", "-q"),
		} {
			if err := topdir.Mark(dir); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

func TestMarkOfWhatIsNoDirectory(t *testing.T) {
	if err := topdir.Mark(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if err := topdir.Mark(os.Args[0]); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a file: %v", err)
	}
}

// TestRatios has pods come and go: a hundred at a time, with ten files each, in
// turn side by side and laid out. It is to be a gain without a journal, and no
// loss with one.
//
//	PODVOL_ASSERT_FIGURES=1 go test ./util/topdir -run Ratios -v
func TestRatios(t *testing.T) {
	asRoot(t, func(t *testing.T) {
		measure(t, "without a journal", 0.5, "-O", "^has_journal")
		measure(t, "with a journal", 1.5)
	})
}

func measure(t *testing.T, what string, limit float64, options ...string) {
	_, asserted := figures.Slack(t)
	rounds := 2
	if asserted {
		rounds = 15
	}
	root := newExt4(t, 64<<30, options...)
	plain, marked := mkdir(t, root, "plain"), mkdir(t, root, "marked")
	if err := topdir.Mark(marked); err != nil {
		t.Fatal(err)
	}
	var sideBySide, laidOut time.Duration
	for range rounds {
		sideBySide += comeAndGo(t, plain)
		laidOut += comeAndGo(t, marked)
	}
	t.Setenv("TMPDIR", root) // which says what the figures are of
	figures.Report(t, figures.Times(fmt.Sprintf("%d pods come and go on ext4 %s, laid out", rounds*100, what), figures.Wall, laidOut, "side by side", sideBySide, limit))
}

func comeAndGo(t *testing.T, dir string) time.Duration {
	t.Helper()
	start := time.Now()
	for n := range 100 {
		pod := mkdir(t, dir, fmt.Sprint("pod", n))
		for f := range 10 {
			if err := os.WriteFile(filepath.Join(pod, fmt.Sprint(f)), []byte("content"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n := range 100 {
		if err := os.RemoveAll(filepath.Join(dir, fmt.Sprint("pod", n))); err != nil {
			t.Fatal(err)
		}
	}
	return time.Since(start)
}
