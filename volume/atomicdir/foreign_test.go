//go:build linux

package atomicdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume/fileset"
)

// What else is in the directory stays: mount points of nested volumes, files
// and links of the user, names that look like ours.
func TestForeignEntriesStay(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"nested-vol", "..mine", "..2026_not_a_version"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "user-file"), []byte("u"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"user-link": "..database/x", "mine": "..data/a", "dangling": "..data/gone"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	var p Publisher
	for n := range 4 {
		mustPublish(t, &p, dir, text(map[string]string{"a": fmt.Sprint(n), fmt.Sprint("b", n): "x"}))
	}
	for _, name := range []string{"nested-vol", "..mine", "..2026_not_a_version", "user-file", "user-link", "mine", "dangling"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestForeignEntryInTheWay(t *testing.T) {
	for name, prepare := range map[string]func(path string) error{
		"file":      func(path string) error { return os.WriteFile(path, []byte("foreign"), 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o755) },
		"link":      func(path string) error { return os.Symlink("/etc", path) },
		"own link":  func(path string) error { return os.Symlink("..data/a", path) },
	} {
		for _, at := range []string{"wanted", "..data", "..data_tmp"} {
			t.Run(name+" at "+at, func(t *testing.T) {
				dir := t.TempDir()
				if err := prepare(filepath.Join(dir, at)); err != nil {
					t.Fatal(err)
				}
				_, err := new(Publisher).Publish(t.Context(), dir, text(map[string]string{"a": "1", "wanted": "2", "z/z": "3"}))
				foreign, ok := errors.AsType[*ForeignEntryError](err)
				if !ok || foreign.Name != at || !strings.Contains(err.Error(), "move it away") {
					t.Fatalf("err = %v, want a ForeignEntryError for %s, and what to do", err, at)
				}
				entries, err := os.ReadDir(dir)
				if err != nil || len(entries) != 1 || entries[0].Name() != at {
					t.Errorf("something was changed: %v, %v", entries, err)
				}
			})
		}
	}
	t.Run("at an update", func(t *testing.T) {
		dir := t.TempDir()
		var p Publisher
		mustPublish(t, &p, dir, text(map[string]string{"a": "1"}))
		if err := os.WriteFile(filepath.Join(dir, "wanted"), []byte("foreign"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := p.Publish(t.Context(), dir, text(map[string]string{"a": "2", "wanted": "2"}))
		if _, ok := errors.AsType[*ForeignEntryError](err); !ok {
			t.Fatalf("err = %v", err)
		}
		wantVisible(t, dir, map[string]string{"a": "1", "wanted": "foreign"})
	})
}

// An entry in the way of the layout does not matter while there is nothing to change, and
// nothing is changed by the update that it stops.
func TestForeignEntryForAnUpdate(t *testing.T) {
	dir := t.TempDir()
	set := map[string]string{"a": "1", "goes": "1"}
	var p Publisher
	mustPublish(t, &p, dir, text(set))
	in := testtool.MkdirAll(t, dir, "..data_tmp")
	for _, p := range []*Publisher{&p, new(Publisher)} {
		if mustPublish(t, p, dir, text(set)) {
			t.Error("changed although it was the same")
		}
		_, err := p.Publish(t.Context(), dir, text(map[string]string{"a": "2"}))
		if foreign, ok := errors.AsType[*ForeignEntryError](err); !ok || foreign.Name != "..data_tmp" {
			t.Errorf("err = %v, want a ForeignEntryError for ..data_tmp", err)
		}
		wantVisible(t, dir, set)
		if got := len(versions(t, dir)); got != 1 {
			t.Errorf("%d versions", got)
		}
	}
	if err := os.Remove(in); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, &p, dir, text(map[string]string{"a": "2"}))
	wantVisible(t, dir, map[string]string{"a": "2"})
}

// A visible name that was led elsewhere is no link of ours: it stays until it is moved away.
func TestNameThatWasLedElsewhere(t *testing.T) {
	dir := t.TempDir()
	files := text(map[string]string{"a": "1", "b": "2"})
	var p Publisher
	mustPublish(t, &p, dir, files)
	untilItShows(t, dir)
	a := filepath.Join(dir, "a")
	if err := errors.Join(os.Remove(a), os.Symlink("..data/b", a)); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*Publisher{&p, new(Publisher)} {
		_, err := p.Publish(t.Context(), dir, files)
		if foreign, ok := errors.AsType[*ForeignEntryError](err); !ok || foreign.Name != "a" {
			t.Errorf("err = %v, want a ForeignEntryError for a", err)
		}
	}
	if err := os.Remove(a); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, &p, dir, files)
	wantVisible(t, dir, map[string]string{"a": "1", "b": "2"})
}

// untilItShows changes dir until its time of change shows it: the clock of some file systems, such
// as tmpfs, stands still for longer than a publication takes.
func untilItShows(t *testing.T, dir string) {
	t.Helper()
	changed := func() unix.Timespec {
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err != nil {
			t.Fatal(err)
		}
		return st.Ctim
	}
	for before := changed(); changed() == before; {
		name := filepath.Join(dir, "foreign")
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Remove(name)); err != nil {
			t.Fatal(err)
		}
	}
}

// A current version that somebody replaced by a link is not followed.
func TestVersionThatIsALinkIsNotFollowed(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(elsewhere, "a"), []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	var p Publisher
	mustPublish(t, &p, dir, text(map[string]string{"a": "1", "sub/b": "2"}))
	version := versions(t, dir)[0]
	if err := os.RemoveAll(version); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, version); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, &p, dir, text(map[string]string{"a": "1", "sub/b": "2"}))
	wantVisible(t, dir, map[string]string{"a": "1", "sub/b": "2"})
	mustPublish(t, &p, dir, text(map[string]string{"a": "2"}))
	if entries, err := os.ReadDir(elsewhere); err != nil || len(entries) != 1 {
		t.Errorf("something outside was changed: %v, %v", entries, err)
	}
}

func TestTargetDirectory(t *testing.T) {
	base := t.TempDir()
	if err := os.MkdirAll(filepath.Join(base, "real", "volume"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(base, "parent")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real/volume", filepath.Join(base, "volume")); err != nil {
		t.Fatal(err)
	}
	files := text(map[string]string{"a": "1"})
	mustPublish(t, new(Publisher), filepath.Join(base, "parent", "volume"), files)
	wantVisible(t, filepath.Join(base, "real", "volume"), map[string]string{"a": "1"})
	for path, want := range map[string]error{
		filepath.Join(base, "volume"):  unix.ENOTDIR,
		filepath.Join(base, "missing"): fs.ErrNotExist,
	} {
		if _, err := new(Publisher).Publish(t.Context(), path, files); !errors.Is(err, want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: err = %v, want %v", path, err, want)
		}
	}
}

// What was remembered does not count when the directory is another one or was
// changed behind the Publisher's back.
func TestRememberedOnlyWhileItIsTrue(t *testing.T) {
	files := text(map[string]string{"a": "1", "b": "2"})
	for name, change := range map[string]func(dir string) error{
		"directory emptied": func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)) },
		"..data removed":    func(dir string) error { return os.Remove(filepath.Join(dir, "..data")) },
		"another version":   func(dir string) error { _, err := new(Publisher).Publish(context.Background(), dir, nil); return err },
		"the version replaced": func(dir string) error {
			v := mustReadlink(dir)
			return errors.Join(os.RemoveAll(v), os.Mkdir(v, 0o755))
		},
		"a name removed": func(dir string) error { return os.Remove(filepath.Join(dir, "a")) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "volume")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			var p Publisher
			mustPublish(t, &p, dir, files)
			if err := change(dir); err != nil {
				t.Fatal(err)
			}
			if !mustPublish(t, &p, dir, files) {
				t.Error("not changed")
			}
			wantVisible(t, dir, map[string]string{"a": "1", "b": "2"})
		})
	}
}

// Unchanged contents write nothing: no time stamp changes and nobody who
// watches for changes is woken. By the stored digest no file is even read.
func TestUnchangedWritesNothing(t *testing.T) {
	dir := t.TempDir()
	files := text(map[string]string{"a": "1", "nested/b": "2"})
	var p Publisher
	mustPublish(t, &p, dir, files)
	version := versions(t, dir)[0]
	watch := func(mask uint32, paths ...string) (events func() int) {
		fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		for _, path := range paths {
			if _, err := unix.InotifyAddWatch(fd, path, mask); err != nil {
				t.Fatal(err)
			}
		}
		return func() int {
			n, _ := unix.Read(fd, make([]byte, 4096))
			return max(n, 0)
		}
	}
	const writing = unix.IN_ALL_EVENTS &^ (unix.IN_OPEN | unix.IN_ACCESS | unix.IN_CLOSE_NOWRITE)
	before := stamps(t, dir)
	writes := watch(writing, dir, version, filepath.Join(version, "nested"))
	all := watch(unix.IN_ALL_EVENTS, version, filepath.Join(version, "nested"))
	if mustPublish(t, &p, dir, files) {
		t.Error("changed, by digest")
	}
	if n := all(); n != 0 {
		t.Errorf("%d bytes of events, by digest", n)
	}
	if mustPublish(t, new(Publisher), dir, files) {
		t.Error("changed, by reading back")
	}
	if n := writes(); n != 0 {
		t.Errorf("%d bytes of events, by reading back", n)
	}
	if diff := cmp.Diff(before, stamps(t, dir)); diff != "" {
		t.Errorf("time stamps (-before +after):\n%s", diff)
	}
	mustPublish(t, &p, dir, text(map[string]string{"a": "2"}))
	if writes() == 0 {
		t.Error("a real change was not noticed: the watch does not work")
	}
}

// stamps are the times of change of everything in dir, and of access of what
// is no link.
func stamps(t *testing.T, dir string) map[string][3]unix.Timespec {
	t.Helper()
	all := map[string][3]unix.Timespec{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		all[path] = [3]unix.Timespec{st.Mtim, st.Ctim}
		if d.Type().IsRegular() {
			all[path] = [3]unix.Timespec{st.Mtim, st.Ctim, st.Atim}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The end of the context between any two steps leaves the old version whole,
// or comes too late and the new one is whole.
func TestContextEndsBetweenSteps(t *testing.T) {
	cause := errors.New("the agent stops")
	old, now := map[string]string{"a": "1", "goes": "1"}, map[string]string{"a": "2", "comes": "2", "n/m": "2"}
	stopped := 0
	for step := int64(1); ; step++ {
		dir := t.TempDir()
		mustPublish(t, new(Publisher), dir, text(old))
		ctx, cancel := context.WithCancelCause(t.Context())
		var steps atomic.Int64
		p := Publisher{beforeStep: func(string, string) error {
			if steps.Add(1) == step {
				cancel(cause)
			}
			return nil
		}}
		_, err := p.Publish(ctx, dir, text(now))
		cancel(nil)
		if err == nil {
			wantVisible(t, dir, now)
			if steps.Load() < step {
				break
			}
			continue
		}
		stopped++
		if !errors.Is(err, cause) {
			t.Fatalf("step %d: %v", step, err)
		}
		wantVisible(t, dir, old)
		wantTidy(t, dir, len(old))
	}
	if stopped < 4 {
		t.Errorf("it was stopped at %d steps only", stopped)
	}
}

func TestRefusedSetsTouchNothing(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	for name, files := range map[string]map[string]fileset.File{
		"absolute":               {"/etc/passwd": {}},
		"up":                     {"a/../../b": {}},
		"just up":                {"..": {}},
		"reserved":               {"..data": {}},
		"reserved after a dot":   {"./..data": {}},
		"empty":                  {"": {}},
		"the volume itself":      {"./": {}},
		"NUL":                    {"a\x00b": {}},
		"long name":              {strings.Repeat("n", 256): {}},
		"long path":              {strings.Repeat("n/", 2000) + "n": {}},
		"file and directory":     {"a": {}, "a-b": {}, "a/b": {}},
		"deep file and dir":      {"x/a/b": {}, "x/a": {}, "x/a.b": {}},
		"the same file twice":    {"a/b": {}, "a//b": {}},
		"type bits in the mode":  {"a": {Mode: fs.ModeDir | 0o755}},
		"setuid":                 {"a": {Mode: fs.ModeSetuid | 0o755}},
		"negative owner":         {"a": {UID: id(-1)}},
		"group of chown's no-op": {"a": {GID: id(1<<32 - 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			files["fine"] = fileset.File{Data: []byte("x"), Mode: 0o644}
			_, err := new(Publisher).Publish(t.Context(), dir, files)
			if _, ok := errors.AsType[*fileset.PathError](err); !ok {
				t.Errorf("err = %v, want a PathError", err)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
				t.Errorf("left: %v, %v", entries, err)
			}
		})
	}
}

// Publications into one directory take turns, under whatever name they reach
// it; the last one wins as a whole.
func TestConcurrentPublications(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "volume")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(".", filepath.Join(base, "alias")); err != nil {
		t.Fatal(err)
	}
	sets := make([]map[string]string, 8)
	for n := range sets {
		sets[n] = map[string]string{"a": fmt.Sprint(n), fmt.Sprint("only", n): "x"}
	}
	var p Publisher
	var all sync.WaitGroup
	for n, set := range sets {
		all.Go(func() {
			path := dir
			if n%2 == 1 {
				path = filepath.Join(base, "alias", "volume")
			}
			for range 10 {
				if _, err := p.Publish(t.Context(), path, text(set)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	got := visible(t, dir)
	if !slices.ContainsFunc(sets, func(set map[string]string) bool { return cmp.Equal(set, got) }) {
		t.Errorf("visible is none of the sets: %v", got)
	}
}

func mustReadlink(dir string) string {
	link, err := os.Readlink(filepath.Join(dir, "..data"))
	if err != nil {
		return ""
	}
	return filepath.Join(dir, link)
}

// Where the clock is too coarse to show a change, the names are all that shows it.
func TestEachVisibleNameIsLookedFor(t *testing.T) {
	dir := t.TempDir()
	files := map[string]fileset.File{"a": {}, "b": {}, "./c": {}, "d/x": {}, "d/y": {}}
	mustPublish(t, new(Publisher), dir, files)
	shown := func() bool {
		t.Helper()
		target, err := openTarget(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer target.close()
		whole, err := target.shows(files)
		if err != nil {
			t.Fatal(err)
		}
		return whole
	}
	if !shown() {
		t.Error("a name is missed after a publication")
	}
	for _, name := range []string{"a", "c", "d"} {
		path, aside := filepath.Join(dir, name), filepath.Join(dir, "foreign")
		if err := os.Rename(path, aside); err != nil {
			t.Fatal(err)
		}
		if shown() {
			t.Errorf("%s is not missed", name)
		}
		if err := os.Rename(aside, path); err != nil {
			t.Fatal(err)
		}
	}
}

// The last set's names save sorting, and change nothing.
func TestDigestIsOfTheFilesAlone(t *testing.T) {
	files := map[string]fileset.File{"a": {Data: []byte("1")}, "b": {Data: []byte("2")}}
	want, sorted := digestOf(files, nil)
	for _, last := range [][]string{sorted, {"a"}, {"a", "c"}, {"a", "b", "c"}} {
		if got, names := digestOf(files, last); got != want || !slices.Equal(names, sorted) {
			t.Errorf("after %q the digest is another, of %q", last, names)
		}
	}
}
