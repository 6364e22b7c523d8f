package staged_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/podvol/podvol/volume/internal/machinedir"
	"github.com/podvol/podvol/volume/plugins/csi/internal/staged"
)

// places makes directories where a volume may be staged.
func places(t *testing.T, n int) (table staged.Table, dirs []string) {
	top := t.TempDir()
	for i := range n {
		dir := filepath.Join(top, fmt.Sprintf("root%d", i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	return staged.Table{Dir: filepath.Join(top, "run", "csi")}, dirs
}

// enter is an operation that only notes a place; leave is one that only forgets it.
func enter(table staged.Table, volume, place string) (elsewhere string, err error) {
	op, err := table.Begin(volume)
	defer op.End()
	if err != nil {
		return "", err
	}
	return op.Enter(place)
}

func leave(table staged.Table, volume, place string) error {
	op, err := table.Begin(volume)
	defer op.End()
	if err != nil {
		return err
	}
	return op.Leave(place)
}

func TestAVolumeIsStagedAtOnePlace(t *testing.T) {
	table, dirs := places(t, 2)
	check := func(place, want string) {
		t.Helper()
		if elsewhere, err := enter(table, "v", place); elsewhere != want || err != nil {
			t.Errorf("Enter(%s) = %q, %v, want %q", place, elsewhere, err, want)
		}
	}
	check(dirs[0], "")
	check(dirs[0], "") // staged again
	check(dirs[1], dirs[0])
	if elsewhere, err := enter(table, "other", dirs[1]); elsewhere != "" || err != nil {
		t.Errorf("another volume: %q, %v", elsewhere, err)
	}
	if err := errors.Join(leave(table, "v", dirs[1]), leave(table, "nothing", dirs[1])); err != nil {
		t.Error(err)
	}
	check(dirs[1], dirs[0])
	if err := leave(table, "v", dirs[0]); err != nil {
		t.Error(err)
	}
	check(dirs[1], "")
	if err := errors.Join(leave(table, "v", dirs[1]), leave(table, "other", dirs[1])); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(table.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
}

// A place that is gone, and one of an earlier boot, count for nothing.
func TestWhatIsGoneCountsForNothing(t *testing.T) {
	table, dirs := places(t, 2)
	if _, err := enter(table, "v", dirs[0]); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dirs[0]); err != nil {
		t.Fatal(err)
	}
	if elsewhere, err := enter(table, "v", dirs[1]); elsewhere != "" || err != nil {
		t.Errorf("after the place is gone: %q, %v", elsewhere, err)
	}
	link := filepath.Join(table.Dir, "v")
	if err := errors.Join(os.Mkdir(dirs[0], 0o700), os.Remove(link), os.Symlink("an-earlier-boot "+dirs[1], link)); err != nil {
		t.Fatal(err)
	}
	if elsewhere, err := enter(table, "v", dirs[0]); elsewhere != "" || err != nil {
		t.Errorf("after a boot: %q, %v", elsewhere, err)
	}
}

// Of many programs at once one has the volume; the others find it at work, or the volume its.
func TestOneOfManyHasTheVolume(t *testing.T) {
	table, dirs := places(t, 8)
	for range 20 {
		var all sync.WaitGroup
		var have atomic.Int32
		for _, dir := range dirs {
			all.Go(func() {
				elsewhere, err := enter(table, "v", dir)
				if err != nil && !errors.Is(err, machinedir.ErrBusy) {
					t.Error(err)
				}
				if elsewhere == "" && err == nil {
					have.Add(1)
				}
			})
		}
		all.Wait()
		if have.Load() != 1 {
			t.Fatalf("%d have it", have.Load())
		}
		for _, dir := range dirs {
			all.Go(func() {
				err := leave(table, "v", dir)
				for errors.Is(err, machinedir.ErrBusy) {
					err = leave(table, "v", dir)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}

func TestOperationsExcludeEachOther(t *testing.T) {
	table, dirs := places(t, 1)
	busy := func(want bool) {
		t.Helper()
		if got, err := table.IsBusy("v"); got != want || err != nil {
			t.Errorf("busy = %v, %v, want %v", got, err, want)
		}
	}
	busy(false)
	op, err := table.Begin("v")
	if err != nil {
		t.Fatal(err)
	}
	busy(true)
	if _, err := enter(table, "v", dirs[0]); !errors.Is(err, machinedir.ErrBusy) {
		t.Errorf("err = %v", err)
	}
	if _, err := enter(table, "other", dirs[0]); err != nil {
		t.Error(err)
	}
	op.End()
	busy(false)
	if err := leave(table, "other", dirs[0]); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(table.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
}

// A program that has died on the way has nothing staged where nothing is. What one that has
// ended its operation has staged counts, also in an empty directory: a device has no mount.
func TestWhereAProgramHasDied(t *testing.T) {
	for name, test := range map[string]struct {
		ends, mounted, written, noTable bool
		has                             bool
	}{
		"died":                     {has: false},
		"died, and it is mounted":  {mounted: true, has: true},
		"died, and it is written":  {written: true, has: true},
		"died, and nobody knows":   {noTable: true, has: true},
		"has ended":                {ends: true, has: true},
		"has ended, it is mounted": {ends: true, mounted: true, has: true},
	} {
		t.Run(name, func(t *testing.T) {
			table, dirs := places(t, 2)
			op, err := table.Begin("v")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := op.Enter(dirs[0]); err != nil {
				t.Fatal(err)
			}
			if test.ends {
				op.End()
			} else {
				op.Die()
			}
			if test.written {
				if err := os.WriteFile(filepath.Join(dirs[0], "file"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if !test.noTable {
				table.IsMounted = func(place string) (bool, error) { return test.mounted && place == dirs[0], nil }
			}
			if busy, err := table.IsBusy("v"); busy || err != nil {
				t.Errorf("busy = %v, %v", busy, err)
			}
			for range 2 { // a refusal changes nothing
				elsewhere, err := enter(table, "v", dirs[1])
				if err != nil || (elsewhere == dirs[0]) != test.has || (elsewhere == "") == test.has {
					t.Errorf("it is at %q, %v", elsewhere, err)
				}
			}
			if test.has && !test.ends {
				test.mounted, test.noTable = false, false
				table.IsMounted = func(string) (bool, error) { return false, nil }
				_ = os.Remove(filepath.Join(dirs[0], "file"))
				if elsewhere, err := enter(table, "v", dirs[1]); elsewhere != "" || err != nil {
					t.Errorf("once nothing is there: %q, %v", elsewhere, err)
				}
			}
		})
	}
}

// A place in another mount namespace counts until the machine is booted: what is to be seen at its
// path here is something else.
func TestAPlaceInAnotherMountNamespace(t *testing.T) {
	table, dirs := places(t, 2)
	table.IsMounted = func(string) (bool, error) { return false, nil }
	table.Home = filepath.Dir(dirs[0])
	enterElsewhere(t, table, dirs[0])
	for range 2 {
		if elsewhere, err := enter(table, "v", dirs[1]); elsewhere != dirs[0] || err != nil {
			t.Errorf("it is at %q, %v", elsewhere, err)
		}
		_ = os.Remove(dirs[0])
	}
	if err := errors.Join(leave(table, "v", dirs[0])); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(table.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
}

// enterElsewhere is a program in another mount namespace that has died after it has noted a place.
func enterElsewhere(t *testing.T, table staged.Table, place string) {
	t.Helper()
	op, err := table.Begin("v")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := op.Enter(place); err != nil {
		t.Fatal(err)
	}
	op.Die()
	beside := filepath.Join(table.Dir, "v.in")
	is, err := os.Readlink(beside)
	_, rest, _ := strings.Cut(is, " ")
	if err := errors.Join(err, os.Remove(beside), os.Symlink("another-view "+rest, beside)); err != nil {
		t.Fatal(err)
	}
}

// Two agents in containers have different roots by the same path.
func TestTheSamePathInAnotherMountNamespace(t *testing.T) {
	table, dirs := places(t, 2)
	other := table
	table.Home, other.Home = dirs[0], dirs[1]
	place := filepath.Join(dirs[0], "place")
	enterElsewhere(t, table, place)
	for range 2 {
		if elsewhere, err := enter(other, "v", place); elsewhere != place || err != nil {
			t.Errorf("it is at %q, %v", elsewhere, err)
		}
		if err := leave(other, "v", place); err != nil {
			t.Error(err)
		}
	}
	// The program of the first root begins again, in a mount namespace of its own.
	if elsewhere, err := enter(table, "v", place); elsewhere != "" || err != nil {
		t.Errorf("its own: %q, %v", elsewhere, err)
	}
	enterElsewhere(t, table, place)
	if err := leave(table, "v", place); err != nil {
		t.Error(err)
	}
	if elsewhere, err := enter(other, "v", place); elsewhere != "" || err != nil {
		t.Errorf("once that has left: %q, %v", elsewhere, err)
	}
}

func TestWithoutADirectoryNothingIsNoted(t *testing.T) {
	if elsewhere, err := enter(staged.Table{}, "v", "/a"); elsewhere != "" || err != nil {
		t.Errorf("%q, %v", elsewhere, err)
	}
	busy, err := staged.Table{}.IsBusy("v")
	if err := errors.Join(err, leave(staged.Table{}, "v", "/a")); busy || err != nil {
		t.Error(busy, err)
	}
}
