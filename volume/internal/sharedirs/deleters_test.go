package sharedirs

import (
	"context"
	"errors"
	"os"
	"testing"
)

// Whoever of several deletes a volume, nothing of it is left where nobody looks
// again.
func TestRaceOfDeleters(t *testing.T) {
	for range 60 {
		dir := t.TempDir()
		b := openBaseAt(t, dir)
		mustMake(t, b, wish("data", "pv1"))
		write(t, b.path("data/deep/er/file"), "x")
		together(t, dir, 4, func(_ int, b *base) {
			if err := b.remove(context.Background(), "data", owner("pv1"), Delete); err != nil {
				t.Errorf("remove: %v", err)
			}
		})
		if got := tree(t, dir); got != "" {
			t.Errorf("left\n%s", got)
		}
		assertBookEmpty(t, b)
		if t.Failed() {
			return
		}
	}
}

// A deletion that was about to move its volume, and another that has just done
// so.
func TestDirectoryIsMovedToTheTrashMeanwhile(t *testing.T) {
	dir := t.TempDir()
	first, second := openBaseAt(t, dir), openBaseAt(t, dir)
	mustMake(t, first, wish("data", "pv1"))
	write(t, first.path("data/file"), "x")
	begun := false
	first.step = func(name string) error {
		if name == "before move out" && !begun {
			begun = true
			second.step = func(name string) error {
				if name == "before move mark" {
					return errCrash
				}
				return nil
			}
			if err := second.remove(t.Context(), "data", owner("pv1"), Delete); !errors.Is(err, errCrash) {
				t.Errorf("the second: %v", err)
			}
		}
		return nil
	}
	mustRemove(t, first, "data", "pv1")
	assertBookEmpty(t, first)
}

// What lies in the trash under the name of one volume with the mark of another
// is that other's.
func TestTrashOfAnother(t *testing.T) {
	b := openBase(t)
	mustMake(t, b, wish("data", "pv2"))
	write(t, b.path("data/precious"), "x")
	// So two movers leave it that stalled, and died.
	id := stagingID("data", owner("pv1"))
	trash := b.path(bookDir + "/trash/" + id)
	if err := errors.Join(os.Rename(b.path("data"), trash), os.Rename(b.path(bookDir+"/marks/"+keyOf("data")), trash+markSuffix)); err != nil {
		t.Fatal(err)
	}
	if err := b.remove(t.Context(), "data", owner("pv1"), Delete); !errors.Is(err, ErrReplaced) {
		t.Errorf("remove: %v", err)
	}
	if _, err := os.Stat(trash + "/precious"); err != nil {
		t.Errorf("another volume's data: %v", err)
	}
}

// A deletion that was about to move its volume moves the next one of the path,
// and dies before it sees that.
func TestVolumeInTheTrashOfAnother(t *testing.T) {
	for _, how := range []OnDelete{Delete, Archive} {
		dir := t.TempDir()
		late, b := openBaseAt(t, dir), openBaseAt(t, dir)
		mustMake(t, b, wish("data", "pv1"))
		next := wish("data", "pv2")
		next.OnDelete = how
		late.step = func(name string) error {
			switch name {
			case "before move out":
				mustRemove(t, b, "data", "pv1")
				mustMake(t, b, next)
				write(t, b.path("data/precious"), "x")
			case "after move out":
				return errCrash
			}
			return nil
		}
		if err := late.remove(t.Context(), "data", owner("pv1"), Delete); !errors.Is(err, errCrash) {
			t.Errorf("the late one: %v", err)
		}
		if how == Delete { // it is found when it is looked for
			mustMake(t, b, next)
			if _, err := os.Stat(b.path("data/precious")); err != nil {
				t.Error(err)
			}
			late.step = nil
			if err := os.Rename(b.path("data"), b.path(bookDir+"/trash/"+stagingID("data", owner("pv1")))); err != nil {
				t.Fatal(err)
			}
		}
		mustRemove(t, b, "data", "pv1")
		mustRemove(t, b, "data", "pv2")
		want := map[OnDelete]string{Delete: "", Archive: "dgrwxrwx--- archived-data\n-rw-r--r-- archived-data/precious\n"}[how]
		if got := tree(t, dir); got != want {
			t.Errorf("%s left\n%s", how, got)
		}
		assertBookEmpty(t, b)
	}
}
