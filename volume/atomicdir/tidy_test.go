//go:build linux

package atomicdir

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// age moves the times of the layout an hour into the past, so that nothing that follows
// happens at the same tick.
func age(t *testing.T, dir string) {
	t.Helper()
	for _, path := range append(versions(t, dir), filepath.Join(dir, "..data")) {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		setTime(t, path, info.ModTime().Add(-time.Hour))
	}
}

func setTime(t *testing.T, path string, at time.Time) {
	t.Helper()
	times := []unix.Timespec{unix.NsecToTimespec(at.UnixNano()), unix.NsecToTimespec(at.UnixNano())}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		t.Fatal(err)
	}
}

// publishedInTurn makes sets the contents of a new directory, one after the other.
func publishedInTurn(t *testing.T, dir string, sets ...map[string]string) {
	t.Helper()
	for _, set := range sets {
		mustPublish(t, new(Publisher), dir, text(set))
		age(t, dir)
	}
}

// dieAt publishes, and ends before a step as if the process were killed: nothing is undone.
func dieAt(t *testing.T, dir string, set map[string]string, at func(op, name string) bool) {
	t.Helper()
	died := new(int)
	defer func() {
		if got := recover(); got != died {
			t.Fatalf("it did not die, or of something else: %v", got)
		}
	}()
	p := Publisher{beforeStep: func(op, name string) error {
		if at(op, name) {
			panic(died)
		}
		return nil
	}}
	_, err := p.Publish(t.Context(), dir, text(set))
	t.Errorf("it was not interrupted: %v", err)
}

// A crash at any step leaves nothing behind the next publication of the set that is in place:
// no secret of the interrupted one, and no outdated one.
func TestUnchangedPublicationTidies(t *testing.T) {
	for set := 1; set <= len(crashSets); set++ {
		crashed := 0
		for step := 1; ; step++ {
			dir := t.TempDir()
			sets := append(slices.Clone(crashSets), crashSets[0])
			publishedInTurn(t, dir, sets[:set]...)
			if !crash(t, dir, set%len(crashSets), step) {
				break
			}
			crashed++
			data := visible(t, mustReadlink(dir))
			p := new(Publisher)
			for range 2 {
				mustPublish(t, p, dir, text(data))
				wantVisible(t, dir, data)
				names := make(map[string]bool)
				for name := range data {
					top, _, _ := strings.Cut(name, "/")
					names[top] = true
				}
				wantTidy(t, dir, len(names))
				for _, v := range versions(t, dir) {
					if got := visible(t, v); !maps.Equal(got, data) && !maps.Equal(got, sets[set-1]) && (set < 2 || !maps.Equal(got, sets[set-2])) {
						t.Errorf("set %d, step %d: %s was never current: %v", set, step, v, got)
					}
				}
				if t.Failed() {
					t.FailNow()
				}
			}
		}
		if crashed < 10 {
			t.Errorf("set %d: only %d steps", set, crashed)
		}
	}
}

// The version before the current one stays through all that tidying, for its readers; it goes
// when the next one is in place.
func TestTidyingKeepsTheVersionBefore(t *testing.T) {
	dir := t.TempDir()
	publishedInTurn(t, dir, map[string]string{"a": "0"}, map[string]string{"a": "1"})
	held, err := os.OpenRoot(filepath.Join(dir, "..data"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	publishedInTurn(t, dir, map[string]string{"a": "2"})
	write := func(op, _ string) bool { return op == "write" }
	dieAt(t, dir, map[string]string{"a": "secret"}, write)
	if got := len(versions(t, dir)); got != 3 {
		t.Fatalf("%d versions, want an unfinished one", got)
	}
	if mustPublish(t, new(Publisher), dir, text(map[string]string{"a": "2"})) {
		t.Error("tidying counts as a change")
	}
	wantTidy(t, dir, 1)
	dieAt(t, dir, map[string]string{"a": "secret"}, write)
	looked := false
	p := Publisher{beforeStep: func(op, name string) error {
		if op == "replace" {
			looked = true
			if got := len(versions(t, dir)); got != 3 {
				t.Errorf("%d versions while one is written, want 3", got)
			}
		}
		if data, err := held.ReadFile("a"); op != "remove version" && (err != nil || string(data) != "1") {
			t.Errorf("before %s %s: %q, %v", op, name, data, err)
		}
		return nil
	}}
	mustPublish(t, &p, dir, text(map[string]string{"a": "3"}))
	wantTidy(t, dir, 1)
	if !looked {
		t.Error("no version was replaced")
	}
}

// A Publisher that knows the set in place tidies up after another one, too.
func TestTidyingAfterAnotherPublisher(t *testing.T) {
	dir := t.TempDir()
	var p Publisher
	mustPublish(t, &p, dir, text(map[string]string{"a": "1"}))
	age(t, dir)
	known := p.known[dir]
	known.changed = unix.Timespec{} // else it may be the same tick
	p.known[dir] = known
	dieAt(t, dir, map[string]string{"a": "secret"}, func(op, _ string) bool { return op == "replace" })
	mustPublish(t, &p, dir, text(map[string]string{"a": "1"}))
	wantVisible(t, dir, map[string]string{"a": "1"})
	wantTidy(t, dir, 1)
}

// Versions are told apart by time; in doubt they stay.
func TestFindLeftovers(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	made := func(n int, minutes time.Duration) string {
		name := fmt.Sprintf("..2026_01_01_00_00_00.%d", n)
		setTime(t, testtool.MkdirAll(t, dir, name), now.Add(minutes*time.Minute))
		return name
	}
	outdated, before, sameTick, current, same := made(9, -4), made(8, -3), made(7, -3), made(6, -2), made(5, -1)
	later, latest := made(4, 1), made(3, 2)
	if err := os.Symlink(current, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	setTime(t, filepath.Join(dir, "..data"), now.Add(-time.Minute))
	opened, err := openTarget(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.close()
	all := []string{outdated, before, sameTick, current, same, later, latest, "..2026_01_01_00_00_00.404"}
	currentVersion, err := opened.currentVersion()
	if err != nil {
		t.Fatal(err)
	}
	found, err := opened.findLeftovers(currentVersion, all)
	slices.Sort(found.neverCurrent)
	if err != nil || !slices.Equal(found.neverCurrent, []string{latest, later}) || !slices.Equal(found.outdated, []string{outdated}) {
		t.Errorf("found %v, %v", found, err)
	}
	if found, err := opened.findLeftovers(version{}, all); err != nil || cmp.Diff(found.all(), all) != "" {
		t.Errorf("without a current one: %v, %v", found, err)
	}
}

// Versions that kills left do not fill the file system for ever.
func TestKillsOnASmallFileSystem(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
			t.Fatal(err)
		}
		big := func(n int) map[string]string {
			set := make(map[string]string)
			for i := range 8 {
				set[fmt.Sprint("k", i)] = fmt.Sprint(n) + strings.Repeat("x", 100<<10)
			}
			return set
		}
		publishedInTurn(t, dir, big(1), big(2))
		for range 8 {
			writes := 0
			dieAt(t, dir, big(3), func(op, _ string) bool {
				if op == "write" {
					writes++
				}
				return writes == 8
			})
		}
		wantVisible(t, dir, big(2))
		mustPublish(t, new(Publisher), dir, text(big(3)))
		wantVisible(t, dir, big(3))
		wantTidy(t, dir, 8)
	})
}

// A leftover that cannot be removed stops no publication; the error says what it is, and the
// one that found nothing to change says it of what was never current.
func TestLeftoverThatCannotBeRemoved(t *testing.T) {
	dir := t.TempDir()
	publishedInTurn(t, dir, map[string]string{"a": "1"})
	dieAt(t, dir, map[string]string{"a": "secret"}, func(op, _ string) bool { return op == "replace" })
	injected := errors.New("injected")
	p := Publisher{beforeStep: func(op, _ string) error {
		if op == "remove version" {
			return injected
		}
		return nil
	}}
	if err := os.Remove(filepath.Join(dir, "..data_tmp")); err != nil {
		t.Fatal(err)
	}
	for _, set := range []map[string]string{{"a": "1"}, {"a": "2"}} {
		_, err := p.Publish(context.Background(), dir, text(set))
		if failure, ok := errors.AsType[*Error](err); !ok || !failure.Published || !errors.Is(err, injected) {
			t.Errorf("%v: err = %v", set, err)
		}
		wantVisible(t, dir, set)
	}
	p.beforeStep = nil
	mustPublish(t, &p, dir, text(map[string]string{"a": "3"}))
	wantTidy(t, dir, 1)
}
