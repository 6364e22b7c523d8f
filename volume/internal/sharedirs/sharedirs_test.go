package sharedirs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMakeAndRemove(t *testing.T) {
	for name, k := range map[string]kernel{"new calls": {true, true}, "old calls": {}} {
		t.Run(name, func(t *testing.T) {
			old := unix.Umask(0o077)
			defer unix.Umask(old)
			b := openBase(t)
			b.kernel = k
			for range 2 {
				mustMake(t, b, wish("ns/deep/data", "pv1"))
			}
			mustMake(t, b, wish("ns/other", "pv2"))
			want := "drwxr-xr-x ns\ndrwxr-xr-x ns/deep\ndgrwxrwx--- ns/deep/data\ndgrwxrwx--- ns/other\n"
			if got := tree(t, b.root.Name()); got != want {
				t.Errorf("made\n%swant\n%s", got, want)
			}
			if info, err := os.Stat(b.path(bookDir)); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("the bookkeeping: %v, %v", info, err)
			}
			write(t, b.path("ns/deep/data/a/b/file"), "data")
			for range 2 {
				mustRemove(t, b, "ns/deep/data", "pv1")
			}
			if got, want := tree(t, b.root.Name()), "drwxr-xr-x ns\ndgrwxrwx--- ns/other\n"; got != want {
				t.Errorf("left\n%swant\n%s", got, want)
			}
			mustRemove(t, b, "ns/other", "pv2")
			if got := tree(t, b.root.Name()); got != "" {
				t.Errorf("left\n%s", got)
			}
			assertBookEmpty(t, b)
		})
	}
}

func TestDataOutlivesMake(t *testing.T) {
	b := openBase(t)
	mustMake(t, b, wish("data", "pv1"))
	write(t, b.path("data/file"), "mine")
	if err := os.Chmod(b.path("data"), 0o700); err != nil {
		t.Fatal(err)
	}
	mustMake(t, b, wish("data", "pv1"))
	if data, err := os.ReadFile(b.path("data/file")); err != nil || string(data) != "mine" {
		t.Errorf("%q, %v", data, err)
	}
	if info, _ := os.Stat(b.path("data")); info.Mode().Perm() != 0o700 {
		t.Errorf("the mode was changed to %v", info.Mode())
	}
}

func TestCheckPath(t *testing.T) {
	b := openBase(t)
	for _, p := range []string{"", "..", "a/..", "/a", ".podvol", "a/.podvol/x", ".PodVol", "archived-x", "a/Archived-y/z", "a//b"} {
		if err := b.make(t.Context(), wish(p, "pv")); !errors.As(err, new(*pathError)) {
			t.Errorf("make %q: %v", p, err)
		}
		if err := b.remove(t.Context(), p, owner("pv"), Delete); !errors.As(err, new(*pathError)) {
			t.Errorf("remove %q: %v", p, err)
		}
	}
	if left, err := os.ReadDir(b.root.Name()); err != nil || len(left) > 0 {
		t.Errorf("something was touched: %v, %v", left, err)
	}
}

// A server that came up without its disk has none of its volumes: that one of
// them is gone there says nothing.
func TestRemoveFromAnotherDisk(t *testing.T) {
	b := openBase(t)
	none, ok := caused(b.remove(t.Context(), "ns/data", owner("pv1"), Delete), ErrNoBook)
	if !ok || none.Other != b.root.Name() || none.Owner != owner("pv1") || !strings.Contains(none.Error(), "mounted on the server") {
		t.Errorf("%v", none)
	}
	if err := b.remove(t.Context(), "ns/data", owner("pv1"), Retain); err != nil {
		t.Errorf("what is retained: %v", err)
	}
	if left, err := os.ReadDir(b.root.Name()); err != nil || len(left) > 0 {
		t.Errorf("something was touched: %v, %v", left, err)
	}
	// What the error says.
	if err := os.Mkdir(b.path(bookDir), 0o700); err != nil {
		t.Fatal(err)
	}
	mustRemove(t, b, "ns/data", "pv1")
}

// What podvol did not make is neither given to a volume nor deleted.
func TestForeignDirectories(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	write(t, filepath.Join(outside, "file"), "precious")
	for name, prepare := range map[string]func(string) error{
		"empty":     func(p string) error { return os.Mkdir(p, 0o755) },
		"with data": func(p string) error { write(t, filepath.Join(p, "file"), "precious"); return nil },
		"file":      func(p string) error { return os.WriteFile(p, []byte("precious"), 0o600) },
		"link":      func(p string) error { return os.Symlink(outside, p) },
		"dangling":  func(p string) error { return os.Symlink("nothing", p) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, k := range []kernel{{true, true}, {}} {
				b := openBase(t)
				b.kernel = k
				mustMake(t, b, wish("other", "other")) // the bookkeeping is there
				if err := prepare(b.path("data")); err != nil {
					t.Fatal(err)
				}
				before := tree(t, b.root.Name()) + tree(t, outside)
				occupied, ok := caused(b.make(t.Context(), wish("data", "pv1")), ErrOccupied)
				if !ok || occupied.Path != b.path("data") || !strings.Contains(occupied.Error(), "data") {
					t.Errorf("make: %v", occupied)
				}
				if err := b.remove(t.Context(), "data", owner("pv1"), Delete); !errors.Is(err, ErrOccupied) {
					t.Errorf("remove: %v", err)
				}
				if err := b.remove(t.Context(), "data", owner("pv1"), Retain); err != nil {
					t.Errorf("remove what was retained: %v", err)
				}
				isDir := name == "empty" || name == "with data"
				made := b.make(t.Context(), wish("data/below", "pv1"))
				removed := b.remove(t.Context(), "data/below", owner("pv1"), Delete)
				for _, err := range []error{made, removed} {
					if isDir != (err == nil) || !isDir && !errors.Is(err, ErrOccupied) {
						t.Errorf("below it: %v", err)
					}
				}
				if after := tree(t, b.root.Name()) + tree(t, outside); after != before {
					t.Errorf("changed from\n%sto\n%s", before, after)
				}
			}
		})
	}
}

// Directories that others made above a volume stay.
func TestForeignParents(t *testing.T) {
	b := openBase(t)
	if err := os.Mkdir(b.path("team"), 0o750); err != nil {
		t.Fatal(err)
	}
	mustMake(t, b, wish("team/a/data", "pv1"))
	mustRemove(t, b, "team/a/data", "pv1")
	if got := tree(t, b.root.Name()); got != "drwxr-x--- team\n" {
		t.Errorf("left\n%s", got)
	}
	assertBookEmpty(t, b)
}

func TestOthersVolumes(t *testing.T) {
	b := openBase(t)
	mustMake(t, b, wish("data", "pv1"))
	later := Owner{Volume: "pv1", ClaimUID: "another"}
	for _, other := range []Owner{owner("pv2"), later} {
		w := wish("data", "")
		w.Owner = other
		occupied, ok := caused(b.make(t.Context(), w), ErrOccupied)
		if !ok || occupied.Owner != owner("pv1") || !strings.Contains(occupied.Error(), `"pv1"`) {
			t.Errorf("make: %v", occupied)
		}
	}
	// One that had the path before may be deleted again.
	mustRemove(t, b, "data", "pv2")
	if err := b.remove(t.Context(), "data", later, Delete); !errors.Is(err, ErrOccupied) {
		t.Errorf("remove: %v", err)
	}
	if got := tree(t, b.root.Name()); got != "dgrwxrwx--- data\n" {
		t.Errorf("left\n%s", got)
	}
}

func TestVolumesDoNotNest(t *testing.T) {
	b := openBase(t)
	mustMake(t, b, wish("a/b", "pv1"))
	for _, p := range []string{"a", "a/b/c", "a/b/c/d"} {
		if err := b.make(t.Context(), wish(p, "pv2")); !errors.Is(err, ErrNested) {
			t.Errorf("make %s: %v", p, err)
		}
	}
	if err := b.remove(t.Context(), "a", owner("pv2"), Delete); !errors.Is(err, ErrNested) {
		t.Errorf("remove of a directory above volumes: %v", err)
	}
	if got := tree(t, b.root.Name()); got != "drwxr-xr-x a\ndgrwxrwx--- a/b\n" {
		t.Errorf("left\n%s", got)
	}
}

func TestOnDelete(t *testing.T) {
	for _, test := range []struct {
		noted, asked OnDelete
		want         string
	}{
		{Delete, Delete, ""},
		{Delete, Retain, "dgrwxrwx--- data\n-rw-r--r-- data/file\n"},
		{Retain, Delete, "dgrwxrwx--- data\n-rw-r--r-- data/file\n"},
		{Retain, Archive, "dgrwxrwx--- data\n-rw-r--r-- data/file\n"},
		{Archive, Delete, "dgrwxrwx--- archived-data\n-rw-r--r-- archived-data/file\n"},
		{Delete, Archive, "dgrwxrwx--- archived-data\n-rw-r--r-- archived-data/file\n"},
	} {
		b := openBase(t)
		w := wish("data", "pv1")
		w.OnDelete = test.noted
		mustMake(t, b, w)
		write(t, b.path("data/file"), "x")
		for _, asked := range []OnDelete{test.asked, Delete} { // that it was to be kept may be forgotten
			if err := b.remove(t.Context(), "data", owner("pv1"), asked); err != nil {
				t.Errorf("%+v, asked to %s: %v", test, asked, err)
			}
		}
		if got := tree(t, b.root.Name()); got != test.want {
			t.Errorf("%+v: left\n%s", test, got)
		}
		if test.noted != Retain && test.asked != Retain {
			assertBookEmpty(t, b)
		}
		if err := b.make(t.Context(), wish("data", "pv2")); (err == nil) != !strings.Contains(test.want, " data\n") {
			t.Errorf("%+v: then make: %v", test, err)
		}
	}
}

// Archives never replace one another, nor anything else.
func TestArchivesCollide(t *testing.T) {
	for _, k := range []kernel{{true, true}, {}} {
		b := openBase(t)
		b.kernel = k
		if err := os.MkdirAll(b.path("ns/archived-data"), 0o700); err != nil { // empty, which rename would replace
			t.Fatal(err)
		}
		for range 4 {
			w := wish("ns/data", "pv1")
			w.OnDelete = Archive
			mustMake(t, b, w)
			write(t, b.path("ns/data/file"), "x")
			mustRemove(t, b, "ns/data", "pv1")
		}
		long := wish(strings.Repeat("x", 255), "pv1")
		long.OnDelete = Archive
		mustMake(t, b, long)
		mustRemove(t, b, long.Path, "pv1")
		if left, err := os.ReadDir(b.path("ns")); err != nil || len(left) != 5 {
			t.Errorf("%v, %v", left, err)
		}
		if left, err := filepath.Glob(b.path("archived-*")); err != nil || len(left) != 1 {
			t.Errorf("%v, %v", left, err)
		}
		assertBookEmpty(t, b)
	}
}

// A directory that somebody has put in the volume's place is not the volume's.
func TestReplacedDirectory(t *testing.T) {
	b := openBase(t)
	mustMake(t, b, wish("data", "pv1"))
	write(t, b.path("data/file"), "x")
	if err := errors.Join(os.Rename(b.path("data"), b.path("aside")), os.Mkdir(b.path("data"), 0o755)); err != nil {
		t.Fatal(err)
	}
	write(t, b.path("data/other"), "x")
	before := tree(t, b.root.Name())
	if err := b.remove(t.Context(), "data", owner("pv1"), Delete); !errors.Is(err, ErrReplaced) {
		t.Errorf("remove: %v", err)
	}
	if err := b.make(t.Context(), wish("data", "pv1")); !errors.Is(err, ErrReplaced) {
		t.Errorf("make: %v", err)
	}
	if after := tree(t, b.root.Name()); after != before {
		t.Errorf("changed from\n%sto\n%s", before, after)
	}
	if err := os.RemoveAll(b.path("data")); err != nil {
		t.Fatal(err)
	}
	if err := b.make(t.Context(), wish("data", "pv1")); !errors.Is(err, ErrLost) {
		t.Errorf("make of what is lost: %v", err)
	}
	mustRemove(t, b, "data", "pv1")
	assertBookEmpty(t, b)
}

// Inode numbers are used again: the same number is not the same directory.
func TestInodeIsNotEnough(t *testing.T) {
	id := identity{Inode: 7, Birth: 1, Handle: "1:00"}
	for _, test := range []struct {
		other identity
		same  bool
	}{
		{id, true}, {identity{Inode: 7}, true}, {identity{Inode: 7, Birth: 1}, true}, {identity{Inode: 7, Handle: "1:00"}, true},
		{identity{Inode: 8, Birth: 1, Handle: "1:00"}, false}, {identity{Inode: 7, Birth: 2, Handle: "1:00"}, false},
		{identity{Inode: 7, Birth: 1, Handle: "1:01"}, false}, {identity{Inode: 7, Handle: "1:01"}, false},
	} {
		if got := id.same(test.other); got != test.same {
			t.Errorf("%+v and %+v: %v", id, test.other, got)
		}
	}
	b := openBase(t)
	seen := map[string]bool{}
	for range 50 {
		mustMake(t, b, wish("data", "pv1"))
		got, err := b.kernel.look(b.root, "data")
		if err != nil {
			t.Fatal(err)
		}
		if seen[got.key()] {
			t.Fatalf("two directories have the identity %+v", got)
		}
		seen[got.key()] = true
		mustRemove(t, b, "data", "pv1")
	}
}

// A tree that its users have made as unpleasant as they can.
func TestHostileTree(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	write(t, filepath.Join(outside, "file"), "precious")
	b := openBase(t)
	mustMake(t, b, wish("ns/data", "pv1"))
	mustMake(t, b, wish("ns/neighbour", "pv2"))
	write(t, b.path("ns/neighbour/file"), "precious")
	data := b.path("ns/data")
	deep := data
	for range 300 {
		deep = filepath.Join(deep, "d")
	}
	write(t, filepath.Join(deep, "file"), "x")
	write(t, filepath.Join(data, ".podvol/marks/x.json"), "{}")
	write(t, filepath.Join(data, "closed/file"), "x")
	err := errors.Join(
		os.Symlink(outside, filepath.Join(data, "link")), os.Symlink("../neighbour", filepath.Join(data, "up")), os.Symlink("/", filepath.Join(data, "root")),
		os.Symlink(".", filepath.Join(data, "loop")), unix.Mkfifo(filepath.Join(data, "fifo"), 0o600),
		os.Chmod(filepath.Join(data, "closed"), 0), os.Chmod(data, 0o500))
	if err != nil {
		t.Fatal(err)
	}
	mustRemove(t, b, "ns/data", "pv1")
	want := "drwxr-xr-x ns\ndgrwxrwx--- ns/neighbour\n-rw-r--r-- ns/neighbour/file\n"
	if got := tree(t, b.root.Name()) + tree(t, outside); got != want+"-rw-r--r-- file\n" {
		t.Errorf("left\n%s", got)
	}
}

func TestDamagedMarks(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "torn": `{"version":1,`, "of another path": `{"version":1,"path":"other","volume":"pv1","claimUID":"uid-of-pv1","onDelete":"delete","directory":{"inode":1}}`,
		"newer": `{"version":2,"path":"data"}`, "without inode": `{"version":1,"path":"data","volume":"pv1"}`,
		"without policy": `{"version":1,"path":"data","volume":"pv1","claimUID":"uid-of-pv1","directory":{"inode":1}}`,
	} {
		b := openBase(t)
		mustMake(t, b, wish("data", "pv1"))
		if err := os.WriteFile(b.path(filepath.Join(bookDir, "marks", keyOf("data"))), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := b.remove(t.Context(), "data", owner("pv1"), Delete); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: remove: %v", name, err)
		}
		if err := b.make(t.Context(), wish("data", "pv1")); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: make: %v", name, err)
		}
		if _, err := os.Stat(b.path("data")); err != nil {
			t.Error(err)
		}
	}
}

func TestEndedContext(t *testing.T) {
	b := openBase(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.make(ctx, wish("data", "pv1")); !errors.Is(err, context.Canceled) {
		t.Errorf("make: %v", err)
	}
	mustMake(t, b, wish("data", "pv1"))
	write(t, b.path("data/file"), "x")
	if err := b.remove(ctx, "data", owner("pv1"), Delete); !errors.Is(err, context.Canceled) {
		t.Errorf("remove: %v", err)
	}
	if _, err := os.Stat(b.path("data/file")); err != nil {
		t.Error(err)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	for errno, want := range map[unix.Errno]string{
		unix.EROFS: "read-only", unix.ENOSPC: "full", unix.EDQUOT: "quota", unix.EACCES: "no_root_squash", unix.EPERM: "no_root_squash",
		unix.ESTALE: "try again", unix.ENAMETOOLONG: "template", unix.EMLINK: "template",
	} {
		err := failed("mkdir", "share/x", &fs.PathError{Op: "mkdir", Path: "y", Err: errno})
		if !errors.Is(err, errno) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "share/x") {
			t.Errorf("%v: %v", errno, err)
		}
	}
	if err := failed("mkdir", "x", unix.EIO); err.(*Error).Advice() != "" {
		t.Error(err)
	}
}
