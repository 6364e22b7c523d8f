package sharedirs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// whereIs returns the path below the base of the one file of this name; empty:
// there is none.
func (b *base) whereIs(t testing.TB, name string) (where string) {
	t.Helper()
	err := filepath.WalkDir(b.root.Name(), func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == name {
			where, err = filepath.Rel(b.root.Name(), p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return where
}

// removeDying begins a deletion that dies at the nth step.
func removeDying(t testing.TB, b *base, p, volume string, n int) (at string) {
	t.Helper()
	died := b.crashAt(n)
	err := b.remove(t.Context(), p, owner(volume), Delete)
	b.step = nil
	if (*died != "") != errors.Is(err, errCrash) || *died == "" && err != nil {
		t.Fatalf("crash %s: %v", *died, err)
	}
	return *died
}

// untilTrashed is removeDying at the first step after which the mark is where it
// was, or in the trash, and the directory is in the trash.
func untilTrashed(t testing.TB, b *base, p, volume string, markToo bool) {
	t.Helper()
	last := "after move out"
	if markToo {
		last = "after move mark"
	}
	b.step = func(name string) error {
		if name == last {
			return errCrash
		}
		return nil
	}
	err := b.remove(t.Context(), p, owner(volume), Delete)
	b.step = nil
	if !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
}

// What an interrupted deletion has not deleted yet is kept if it is to be by now.
func TestKeptAfterDeletionWasBegun(t *testing.T) {
	for how, want := range map[OnDelete]string{Retain: "ns/data/precious", Archive: "ns/archived-data/precious"} {
		for n := 1; ; n++ {
			b := openBase(t)
			mustMake(t, b, wish("ns/data", "pv1"))
			mustMake(t, b, wish("ns/other", "pv2"))
			write(t, b.path("ns/data/precious"), "x")
			at := removeDying(t, b, "ns/data", "pv1", n)
			if at == "" {
				break
			}
			before := b.whereIs(t, "precious")
			mustRemove(t, b, "ns/other", "pv2")                  // with the directory above, if that is empty
			for _, again := range []OnDelete{how, how, Delete} { // it may be forgotten
				if err := b.remove(t.Context(), "ns/data", owner("pv1"), again); err != nil {
					t.Errorf("crash %s, %s: %v", at, again, err)
				}
			}
			if after := b.whereIs(t, "precious"); (before != "") != (after == want) {
				t.Errorf("crash %s: was at %q, and is after %s at %q", at, before, how, after)
			}
			if before == "" || how == Archive {
				mustMake(t, b, wish("ns/data", "pv1"))
				mustRemove(t, b, "ns/data", "pv1")
			}
		}
	}
}

// A crash in keeping what was to be deleted loses nothing either.
func TestCrashWhileKeepingWhatWasBegun(t *testing.T) {
	for how, want := range map[OnDelete]string{Retain: "ns/deep/data/precious", Archive: "ns/deep/archived-data/precious"} {
		for _, markToo := range []bool{false, true} {
			prepare := func(b *base) {
				mustMake(t, b, wish("ns/deep/data", "pv1"))
				mustMake(t, b, wish("ns/deep/other", "pv2"))
				write(t, b.path("ns/deep/data/precious"), "x")
				untilTrashed(t, b, "ns/deep/data", "pv1", markToo)
				mustRemove(t, b, "ns/deep/other", "pv2")
			}
			keep := func(b *base) error { return b.remove(t.Context(), "ns/deep/data", owner("pv1"), how) }
			crashes(t, prepare, keep, func(b *base) {
				if b.whereIs(t, "precious") == "" {
					t.Error("it is lost")
				}
				if err := keep(b); err != nil {
					t.Errorf("again: %v", err)
				}
				if got := b.whereIs(t, "precious"); got != want {
					t.Errorf("it is at %q, not at %s", got, want)
				}
			})
			// Nor does one hinder a deletion.
			crashes(t, prepare, keep, func(b *base) {
				if err := b.remove(t.Context(), "ns/deep/data", owner("pv1"), Delete); err != nil {
					t.Errorf("delete: %v", err)
				}
				if got := b.whereIs(t, "precious"); got != "" && got != want {
					t.Errorf("it is at %q", got)
				}
			})
		}
	}
}

// Where the path was taken meanwhile, the error says where the rest is.
func TestKeptButThePathIsTaken(t *testing.T) {
	for name, test := range map[string]struct {
		markToo bool
		take    func(*testing.T, *base) error
	}{
		"by a directory":       {false, func(t *testing.T, b *base) error { write(t, b.path("ns/data/own"), "x"); return nil }},
		"by an empty one":      {true, func(t *testing.T, b *base) error { return os.MkdirAll(b.path("ns/data"), 0o755) }},
		"by a file":            {true, func(t *testing.T, b *base) error { write(t, b.path("ns/data"), "x"); return nil }},
		"above, by a file":     {true, func(t *testing.T, b *base) error { write(t, b.path("ns"), "x"); return nil }},
		"above, by a volume":   {true, func(t *testing.T, b *base) error { return b.make(t.Context(), wish("ns", "pv2")) }},
		"by a volume":          {true, func(t *testing.T, b *base) error { return b.make(t.Context(), wish("ns/data", "pv2")) }},
		"by its own successor": {true, func(t *testing.T, b *base) error { return b.make(t.Context(), wish("ns/data", "pv1")) }},
	} {
		t.Run(name, func(t *testing.T) {
			for _, how := range []OnDelete{Retain, Archive} {
				for _, k := range []kernel{{true, true}, {}} {
					b := openBase(t)
					b.kernel = k
					mustMake(t, b, wish("ns/data", "pv1"))
					write(t, b.path("ns/data/precious"), "x")
					untilTrashed(t, b, "ns/data", "pv1", test.markToo)
					if err := os.Remove(b.path("ns")); err != nil {
						t.Fatal(err)
					}
					if err := test.take(t, b); err != nil {
						t.Fatal(err)
					}
					before := tree(t, b.root.Name())
					for range 2 {
						err := b.remove(t.Context(), "ns/data", owner("pv1"), how)
						trashed, ok := caused(err, ErrTrashed)
						if !ok || trashed.Path != b.path("ns/data") || trashed.Owner != owner("pv1") || !strings.Contains(err.Error(), trashed.Other) {
							t.Fatalf("%s: %v", how, err)
						}
						if _, err := os.Stat(filepath.Join(trashed.Other, "precious")); err != nil {
							t.Errorf("%s: %v", how, err)
						}
					}
					if after := tree(t, b.root.Name()); after != before {
						t.Errorf("%s: changed from\n%sto\n%s", how, before, after)
					}
				}
			}
		})
	}
}

// What the error says helps.
func TestTrashedAdvice(t *testing.T) {
	b := openBase(t)
	mustMake(t, b, wish("data", "pv1"))
	write(t, b.path("data/precious"), "x")
	untilTrashed(t, b, "data", "pv1", true)
	if err := os.Mkdir(b.path("data"), 0o755); err != nil {
		t.Fatal(err)
	}
	trashed, ok := caused(b.remove(t.Context(), "data", owner("pv1"), Retain), ErrTrashed)
	if !ok {
		t.Fatal(trashed)
	}
	if err := os.Rename(trashed.Other, b.path("elsewhere")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.remove(t.Context(), "data", owner("pv1"), Retain); err != nil {
			t.Error(err)
		}
	}
	if got := b.whereIs(t, "precious"); got != "elsewhere/precious" {
		t.Errorf("it is at %q", got)
	}
}

// A volume whose deletion was begun is not lost yet, and is not given back
// half-deleted either.
func TestMakeAfterDeletionWasBegun(t *testing.T) {
	b := openBase(t)
	mustMake(t, b, wish("ns/data", "pv1"))
	write(t, b.path("ns/data/precious"), "x")
	untilTrashed(t, b, "ns/data", "pv1", false)
	err := b.make(t.Context(), wish("ns/data", "pv1"))
	trashed, ok := caused(err, ErrTrashed)
	if !ok || trashed.Path != b.path("ns/data") || trashed.Owner != owner("pv1") || trashed.Err != nil {
		t.Fatalf("make: %v", err)
	}
	// Either of what it says.
	if err := os.Rename(trashed.Other, b.path("ns/data")); err != nil {
		t.Fatal(err)
	}
	mustMake(t, b, wish("ns/data", "pv1"))
	if got := b.whereIs(t, "precious"); got != "ns/data/precious" {
		t.Errorf("it is at %q", got)
	}
	untilTrashed(t, b, "ns/data", "pv1", false)
	mustRemove(t, b, "ns/data", "pv1")
	mustMake(t, b, wish("ns/data", "pv1"))
	mustRemove(t, b, "ns/data", "pv1")
	assertBookEmpty(t, b)
}

// What was retained is nobody's, whoever asks; its own volume is told that it
// was its own, since it may hold that volume's data.
func TestMakeOfWhatWasRetained(t *testing.T) {
	b := openBase(t)
	w := wish("ns/data", "pv1")
	w.OnDelete = Retain
	mustMake(t, b, w)
	write(t, b.path("ns/data/precious"), "x")
	mustRemove(t, b, "ns/data", "pv1")
	for volume, want := range map[string]string{"pv1": "was retained", "pv2": "is not podvol's"} {
		occupied, ok := caused(b.make(t.Context(), wish("ns/data", volume)), ErrOccupied)
		if !ok || (occupied.Cause == ErrRetained) != (volume == "pv1") || !strings.Contains(occupied.Error(), want) {
			t.Errorf("%s: %v", volume, occupied)
		}
	}
	if err := os.Rename(b.path("ns/data"), b.path("elsewhere")); err != nil {
		t.Fatal(err)
	}
	mustMake(t, b, w)
	if got := b.whereIs(t, "precious"); got != "elsewhere/precious" {
		t.Errorf("it is at %q", got)
	}
}

// Who deletes is told where nothing was there to be deleted, and only then.
func TestMissingDirectoriesAreTold(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, b *base)
		missing bool
	}{
		"there":        {func(*testing.T, *base) {}, false},
		"in the trash": {func(t *testing.T, b *base) { untilTrashed(t, b, "data", "pv1", true) }, false},
		"moved out":    {func(t *testing.T, b *base) { untilTrashed(t, b, "data", "pv1", false) }, false},
		"removed by hand": {func(t *testing.T, b *base) {
			if err := os.Remove(b.path("data")); err != nil {
				t.Fatal(err)
			}
		}, true},
		"deleted before": {func(t *testing.T, b *base) { mustRemove(t, b, "data", "pv1") }, true},
		"another's": {func(t *testing.T, b *base) {
			mustRemove(t, b, "data", "pv1")
			mustMake(t, b, wish("data", "pv2"))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := openBase(t)
			mustMake(t, b, wish("data", "pv1"))
			tc.prepare(t, b)
			told := false
			err := Remove(t.Context(), b.root, Removal{Path: "data", Owner: owner("pv1"), AtLeast: Delete, Missing: func() { told = true }})
			if err != nil || told != tc.missing {
				t.Errorf("told %v, %v", told, err)
			}
		})
	}
}
