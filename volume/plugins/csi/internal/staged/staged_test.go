package staged_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

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

func TestAVolumeIsStagedAtOnePlace(t *testing.T) {
	table, dirs := places(t, 2)
	enter := func(place, want string) {
		t.Helper()
		if elsewhere, err := table.Enter("v", place); elsewhere != want || err != nil {
			t.Errorf("Enter(%s) = %q, %v, want %q", place, elsewhere, err, want)
		}
	}
	enter(dirs[0], "")
	enter(dirs[0], "") // staged again
	enter(dirs[1], dirs[0])
	if elsewhere, err := table.Enter("other", dirs[1]); elsewhere != "" || err != nil {
		t.Errorf("another volume: %q, %v", elsewhere, err)
	}
	if err := errors.Join(table.Leave("v", dirs[1]), table.Leave("nothing", dirs[1])); err != nil {
		t.Error(err)
	}
	enter(dirs[1], dirs[0])
	if err := table.Leave("v", dirs[0]); err != nil {
		t.Error(err)
	}
	enter(dirs[1], "")
	if err := errors.Join(table.Leave("v", dirs[1]), table.Leave("other", dirs[1])); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(table.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
}

// A place that is gone, and one of an earlier boot, count for nothing.
func TestWhatIsGoneCountsForNothing(t *testing.T) {
	table, dirs := places(t, 2)
	if _, err := table.Enter("v", dirs[0]); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dirs[0]); err != nil {
		t.Fatal(err)
	}
	if elsewhere, err := table.Enter("v", dirs[1]); elsewhere != "" || err != nil {
		t.Errorf("after the place is gone: %q, %v", elsewhere, err)
	}
	link := filepath.Join(table.Dir, "v")
	if err := errors.Join(os.Mkdir(dirs[0], 0o700), os.Remove(link), os.Symlink("an-earlier-boot "+dirs[1], link)); err != nil {
		t.Fatal(err)
	}
	if elsewhere, err := table.Enter("v", dirs[0]); elsewhere != "" || err != nil {
		t.Errorf("after a boot: %q, %v", elsewhere, err)
	}
}

// Of many programs at once one has the volume.
func TestOneOfManyHasTheVolume(t *testing.T) {
	table, dirs := places(t, 8)
	for range 20 {
		var all sync.WaitGroup
		var have atomic.Int32
		for _, dir := range dirs {
			all.Go(func() {
				elsewhere, err := table.Enter("v", dir)
				if err != nil {
					t.Error(err)
				}
				if elsewhere == "" {
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
				if err := table.Leave("v", dir); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}

func TestWithoutADirectoryNothingIsNoted(t *testing.T) {
	if elsewhere, err := (staged.Table{}).Enter("v", "/a"); elsewhere != "" || err != nil {
		t.Errorf("%q, %v", elsewhere, err)
	}
	if err := (staged.Table{}).Leave("v", "/a"); err != nil {
		t.Error(err)
	}
}
