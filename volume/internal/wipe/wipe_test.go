package wipe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/justmade"
	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume/reclaim"
)

func makeTree(t testing.TB, dir string, files ...string) {
	t.Helper()
	for _, name := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(path, 0o755)
		} else {
			err = os.WriteFile(path, []byte(name), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func openDir(t testing.TB, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]string, len(entries))
	for i, e := range entries {
		all[i] = e.Name()
	}
	return all
}

func wantNames(t testing.TB, dir string, want ...string) {
	t.Helper()
	if got := names(t, dir); !slices.Equal(got, want) {
		t.Errorf("in %s: %q, want %q", dir, got, want)
	}
}

// volumeAndNeighbour is a directory with everything that a hostile pod may leave there,
// and a neighbour that its links lead to. The volume has 11 entries, 8 of them
// directly in it.
func volumeAndNeighbour(t testing.TB) (dir, neighbour string) {
	t.Helper()
	base := t.TempDir()
	dir, neighbour = filepath.Join(base, "volume"), filepath.Join(base, "neighbour")
	makeTree(t, base, "neighbour/kept", "neighbour/d/kept", "volume/file", "volume/.hidden", "volume/..data", "volume/d/e/f", "volume/empty/")
	for link, to := range map[string]string{"out": neighbour, "up": "../neighbour/d", "d/root": "/"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600), os.Chmod(dir, 0o710)); err != nil {
		t.Fatal(err)
	}
	return dir, neighbour
}

func wantNeighbourWhole(t testing.TB, neighbour string) {
	t.Helper()
	wantNames(t, neighbour, "d", "kept")
	wantNames(t, filepath.Join(neighbour, "d"), "kept")
}

func TestSurveyCountsAndChangesNothing(t *testing.T) {
	dir, neighbour := volumeAndNeighbour(t)
	before := names(t, dir)
	found, err := Survey(t.Context(), openDir(t, dir))
	slices.Sort(found.First)
	if err != nil || found.Entries != 11 || found.Bytes <= 0 || found.Mounts != 0 || !slices.Equal(found.First, before) {
		t.Errorf("Survey = %+v, %v", found, err)
	}
	wantNames(t, dir, before...)
	wantNeighbourWhole(t, neighbour)
	for n := range 2 * maxFirst {
		makeTree(t, dir, fmt.Sprintf("more%d", n))
	}
	if found, err := Survey(t.Context(), openDir(t, dir)); err != nil || len(found.First) != maxFirst {
		t.Errorf("Survey of many = %+v, %v", found, err)
	}
}

func TestEmptyVolume(t *testing.T) {
	dir, neighbour := volumeAndNeighbour(t)
	listener, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	tooEarly := func(p Progress) { t.Errorf("reported %+v within the hour", p) }
	if err := Empty(t.Context(), openDir(t, dir), Options{Report: tooEarly, Every: time.Hour}); err != nil {
		t.Fatal(err)
	}
	wantNames(t, dir)
	wantNeighbourWhole(t, neighbour)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o710 {
		t.Errorf("the root is %v, %v", info.Mode(), err)
	}
}

func TestArchiveMovesEverything(t *testing.T) {
	for name, rename := range map[string]renameat2{
		"renameat2": unix.Renameat2,
		"NFS":       func(int, string, int, string, uint) error { return unix.EINVAL },
		"old":       func(int, string, int, string, uint) error { return unix.ENOSYS },
	} {
		t.Run(name, func(t *testing.T) {
			dir, neighbour := volumeAndNeighbour(t)
			before := names(t, dir)
			archives := t.TempDir()
			archive, err := archiveWith(t.Context(), openDir(t, dir), openDir(t, archives), "pv1", Options{}, rename)
			if err != nil || archive != "pv1" {
				t.Fatalf("Archive = %q, %v", archive, err)
			}
			wantNames(t, dir)
			wantNames(t, filepath.Join(archives, "pv1"), before...)
			wantNeighbourWhole(t, neighbour)
			if info, err := os.Stat(filepath.Join(archives, "pv1")); err != nil || info.Mode().Perm() != archiveMode {
				t.Errorf("the archive is %v, %v", info.Mode(), err)
			}
			// Nothing to move makes nothing; what comes later goes elsewhere.
			if archive, err := archiveWith(t.Context(), openDir(t, dir), openDir(t, archives), "pv1", Options{}, rename); err != nil || archive != "" {
				t.Errorf("again: %q, %v", archive, err)
			}
			makeTree(t, dir, "file")
			archive, err = archiveWith(t.Context(), openDir(t, dir), openDir(t, archives), "pv1", Options{}, rename)
			if err != nil || archive != "pv1.2" {
				t.Errorf("later: %q, %v", archive, err)
			}
			wantNames(t, archives, "pv1", "pv1.2")
			wantNames(t, filepath.Join(archives, "pv1.2"), "file")
		})
	}
}

// Somebody makes a file again that was moved: it replaces nothing.
func TestArchiveReplacesNothing(t *testing.T) {
	for name, refusal := range map[string]error{"renameat2": nil, "NFS": unix.EINVAL} {
		t.Run(name, func(t *testing.T) {
			dir, archives := t.TempDir(), t.TempDir()
			makeTree(t, dir, "file")
			again := 3
			rename := func(olddirfd int, oldpath string, newdirfd int, newpath string, flags uint) error {
				err := refusal
				if err == nil {
					err = unix.Renameat2(olddirfd, oldpath, newdirfd, newpath, flags)
				} else if _, statErr := os.Lstat(filepath.Join(archives, "pv1", "file")); statErr != nil && again == 3 {
					err = unix.Renameat(olddirfd, oldpath, newdirfd, newpath)
				}
				if err == nil && again > 0 {
					again--
					makeTree(t, dir, "file")
				}
				return err
			}
			if _, err := archiveWith(t.Context(), openDir(t, dir), openDir(t, archives), "pv1", Options{}, rename); err != nil {
				t.Fatal(err)
			}
			wantNames(t, dir)
			if got := len(names(t, archives)); got < 2 {
				t.Errorf("%d archives", got)
			}
			for _, archive := range names(t, archives) {
				wantNames(t, filepath.Join(archives, archive), "file")
			}
		})
	}
}

func TestArchiveElsewhereIsRefused(t *testing.T) {
	dir, archives := t.TempDir(), t.TempDir()
	makeTree(t, dir, "file")
	archive, err := archiveWith(t.Context(), openDir(t, dir), openDir(t, archives), "pv1", Options{},
		func(int, string, int, string, uint) error { return unix.EXDEV })
	if e, ok := errors.AsType[*reclaim.IncompleteError](err); !ok || e.Done != 0 || !errors.Is(err, ErrOtherFileSystem) || archive != "" {
		t.Errorf("Archive = %q, %v", archive, err)
	}
	wantNames(t, dir, "file")
	wantNames(t, archives)
}

// Somebody puts a directory of their own in place of a new archive.
func TestArchiveThatIsNotOursGetsNothing(t *testing.T) {
	for name, mode := range map[string]fs.FileMode{"open": 0o755, "with files": archiveMode} {
		archives := t.TempDir()
		theirs := filepath.Join(archives, "pv1")
		if err := os.Mkdir(theirs, mode); err != nil {
			t.Fatal(err)
		}
		if name == "with files" {
			makeTree(t, theirs, "file")
		}
		a := &archiver{archives: openDir(t, archives), name: "pv1", number: 1, rename: unix.Renameat2, meter: newMeter(Options{})}
		if err := a.open("pv1"); !errors.Is(err, justmade.ErrOther) {
			t.Errorf("%s: %v", name, err)
		}
		a.close()
		wantNames(t, archives, "pv1")
	}
}

func TestArchiveThatVanishesEnds(t *testing.T) {
	dir, archives := t.TempDir(), t.TempDir()
	makeTree(t, dir, "file")
	_, err := archiveWith(t.Context(), openDir(t, dir), openDir(t, archives), "pv1", Options{},
		func(int, string, int, string, uint) error { return unix.ENOENT })
	if _, ok := errors.AsType[*reclaim.IncompleteError](err); !ok {
		t.Errorf("err = %v", err)
	}
	wantNames(t, dir, "file")
}

// The ways to empty a directory, each of which is interrupted and goes on.
func ways(archives *os.File) map[string]func(context.Context, *os.File, Options) error {
	return map[string]func(context.Context, *os.File, Options) error{
		"delete": Empty,
		"archive": func(ctx context.Context, root *os.File, r Options) error {
			_, err := Archive(ctx, root, archives, "pv1", r)
			return err
		},
	}
}

func TestManyFilesInterruptedAndResumed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		memory := t.TempDir() // so many files cost disks a while
		if err := unix.Mount("tmpfs", memory, "tmpfs", 0, "nr_inodes=1000000"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(memory, unix.MNT_DETACH) })
		dir, archives := filepath.Join(memory, "volume"), filepath.Join(memory, "archives")
		makeTree(t, memory, "volume/", "archives/")
		for name, way := range ways(openDir(t, archives)) {
			t.Run(name, func(t *testing.T) { interruptAndResume(t, dir, way) })
		}
	})
}

func interruptAndResume(t *testing.T, dir string, way func(context.Context, *os.File, Options) error) {
	files, steps := 100_000, 30_000
	if testtool.Shortened() {
		files, steps = 10_000, 3_000
	}
	root := openDir(t, dir)
	for n := range files {
		fd, err := unix.Openat(int(root.Fd()), fmt.Sprintf("f%d", n), unix.O_CREAT|unix.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
	}
	cause := errors.New("the agent stops")
	reports := 0
	for left := files; left > steps; left -= steps {
		ctx, cancel := context.WithCancelCause(t.Context())
		err := way(ctx, root, Options{Report: func(p Progress) {
			if reports++; p.Done == int64(steps) {
				cancel(cause)
			}
		}})
		e, ok := errors.AsType[*reclaim.IncompleteError](err)
		if !ok || !errors.Is(err, cause) || e.Done != int64(steps) || !strings.Contains(err.Error(), fmt.Sprint(steps, " entries")) {
			t.Fatalf("err = %v", err)
		}
		if found := len(names(t, dir)); found != left-steps {
			t.Fatalf("%d left of %d", found, left)
		}
	}
	var count atomic.Int64
	if err := way(t.Context(), root, Options{Count: &count}); err != nil || reports != files-int(count.Load()) {
		t.Errorf("%d reports, then %d entries, %v", reports, count.Load(), err)
	}
	wantNames(t, dir)
}

func TestMountsInTheVolumeStay(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		makeTree(t, dir, "d/mnt/", "file")
		target := filepath.Join(dir, "d/mnt")
		if err := unix.Mount("tmpfs", target, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
		makeTree(t, target, "kept")
		if found, err := Survey(t.Context(), openDir(t, dir)); err != nil || found.Mounts != 1 || found.Entries != 2 {
			t.Errorf("Survey = %+v, %v", found, err)
		}
		err := Empty(t.Context(), openDir(t, dir), Options{})
		if e, ok := errors.AsType[*removetree.MountError](err); !ok || e.Path != target {
			t.Errorf("Empty = %v", err)
		}
		wantNames(t, target, "kept")

		// Moved into an archive on another mount of the same file system.
		other, archives := t.TempDir(), t.TempDir()
		makeTree(t, other, "file")
		if err := unix.Mount(archives, archives, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(archives, unix.MNT_DETACH) })
		if _, err := Archive(t.Context(), openDir(t, other), openDir(t, archives), "pv1", Options{}); !errors.Is(err, ErrOtherFileSystem) {
			t.Errorf("Archive = %v", err)
		}
		wantNames(t, other, "file")
		wantNames(t, archives)
	})
}

// Somebody swaps a directory of the volume for a link that leads out of it.
func TestRacingLinksLeadNowhere(t *testing.T) {
	for name, way := range ways(openDir(t, t.TempDir())) {
		t.Run(name, func(t *testing.T) {
			dir, neighbour := volumeAndNeighbour(t)
			swapped := filepath.Join(dir, "d")
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					default:
						_ = unix.Renameat2(unix.AT_FDCWD, swapped, unix.AT_FDCWD, filepath.Join(dir, "up"), unix.RENAME_EXCHANGE)
					}
				}
			}()
			for range 50 {
				if err := way(t.Context(), openDir(t, dir), Options{}); err != nil {
					t.Error(err)
				}
				makeTree(t, dir, "d/e/f", "d/d/kept", "d/kept")
				if err := os.Symlink(neighbour, filepath.Join(dir, "up")); err != nil && !errors.Is(err, fs.ErrExist) {
					t.Error(err)
				}
			}
			close(stop)
			<-stopped
			wantNeighbourWhole(t, neighbour)
		})
	}
}

// The directory that stays is emptied as well; what only has its name goes.
func TestEmptyKeepsADirectory(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		make func(path string) error
		left int
	}{
		"directory": {func(path string) error { return os.MkdirAll(filepath.Join(path, "in/it"), 0o755) }, 1},
		"link":      {func(path string) error { return os.Symlink(outside, path) }, 0},
		"file":      {func(path string) error { return os.WriteFile(path, nil, 0o600) }, 0},
		"nothing":   {func(string) error { return nil }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := errors.Join(tc.make(filepath.Join(dir, "lost+found")), os.MkdirAll(filepath.Join(dir, "a/lost+found/b"), 0o755)); err != nil {
				t.Fatal(err)
			}
			root, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			if err := Empty(t.Context(), root, Options{Keep: "lost+found"}); err != nil {
				t.Fatal(err)
			}
			left, err := filepath.Glob(filepath.Join(dir, "*"))
			below, _ := filepath.Glob(filepath.Join(dir, "*/*"))
			if err != nil || len(left) != tc.left || len(below) > 0 {
				t.Errorf("%v and %v are left, %v", left, below, err)
			}
			if _, err := os.Stat(filepath.Join(outside, "file")); err != nil {
				t.Error("the link was followed")
			}
		})
	}
}
