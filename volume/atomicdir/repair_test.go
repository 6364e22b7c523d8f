//go:build linux

package atomicdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// A mode that was changed is put right, of the version itself as of what is in it.
func TestModesAreRepaired(t *testing.T) {
	set := map[string]string{"a": "1", "n/b": "2"}
	for _, c := range []struct {
		name string
		mode fs.FileMode
		// seen says that a Publisher with the set in memory notices it, too: it looks at the
		// version, not into it.
		seen bool
	}{{".", 0o700, true}, {".", 0o777, true}, {"a", 0o600, false}, {"n", 0o700, false}, {"n/b", 0o666, false}} {
		dir := t.TempDir()
		var p Publisher
		mustPublish(t, &p, dir, text(set))
		for _, next := range []*Publisher{&p, new(Publisher)} {
			if next == &p && !c.seen {
				continue
			}
			path := filepath.Join(dir, "..data") + "/" + c.name
			before, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, c.mode); err != nil {
				t.Fatal(err)
			}
			if !mustPublish(t, next, dir, text(set)) {
				t.Errorf("%s of mode %v: not changed", c.name, c.mode)
			}
			if now, err := os.Stat(path); err != nil || now.Mode() != before.Mode() {
				t.Errorf("%s of mode %v: now %v, %v", c.name, c.mode, now.Mode(), err)
			}
			wantVisible(t, dir, set)
			wantTidy(t, dir, len(set))
		}
	}
}

// Even a version that its owner can neither list nor enter is replaced.
func TestVersionThatCannotBeOpened(t *testing.T) {
	dir := os.Getenv(ordinaryDirVar)
	if dir == "" {
		runAsOrdinaryUser(t, openToAll(t), 0o022)
		return
	}
	both, one := map[string]string{"a": "1", "goes": "2"}, map[string]string{"a": "1"}
	// The version before the current one is kept, and cannot be opened by the test's end either.
	t.Cleanup(func() {
		versions, err := filepath.Glob(filepath.Join(dir, "..2*"))
		for _, v := range versions {
			err = errors.Join(err, os.Chmod(v, 0o755))
		}
		if err != nil {
			t.Error(err)
		}
	})
	var p Publisher
	mustPublish(t, &p, dir, text(both))
	for _, set := range []map[string]string{both, one, both} {
		if err := os.Chmod(mustReadlink(dir), 0); err != nil {
			t.Fatal(err)
		}
		if !mustPublish(t, &p, dir, text(set)) {
			t.Errorf("%v: not changed", set)
		}
		wantVisible(t, dir, set)
		wantTidy(t, dir, len(set))
	}
}

// A power cut may leave files empty or of zeros, and names missing: a new Publisher reads back
// what is there, and publishes the same set anew.
func TestTornStateIsRepaired(t *testing.T) {
	set := map[string]string{"a": "1", "n/b": "2", "n/c": "3"}
	zeros := func(path string) error { return os.WriteFile(path, []byte{0}, 0o644) }
	for name, tear := range map[string]func(dir string) error{
		"an empty file":        func(dir string) error { return os.Truncate(filepath.Join(dir, "a"), 0) },
		"an empty nested file": func(dir string) error { return os.Truncate(filepath.Join(dir, "n/b"), 0) },
		"a file of zeros":      func(dir string) error { return zeros(filepath.Join(dir, "n/c")) },
		"no file":              func(dir string) error { return os.Remove(filepath.Join(dir, "..data/a")) },
		"no nested file":       func(dir string) error { return os.Remove(filepath.Join(dir, "n/b")) },
		"no directory":         func(dir string) error { return os.RemoveAll(filepath.Join(dir, "..data/n")) },
		"an empty version": func(dir string) error {
			v := mustReadlink(dir)
			return errors.Join(os.RemoveAll(v), os.Mkdir(v, 0o755))
		},
		"no version":      func(dir string) error { return os.RemoveAll(mustReadlink(dir)) },
		"no ..data":       func(dir string) error { return os.Remove(filepath.Join(dir, "..data")) },
		"no visible name": func(dir string) error { return os.Remove(filepath.Join(dir, "n")) },
		"nothing": func(dir string) error {
			return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "volume")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			publishedInTurn(t, dir, map[string]string{"a": "0", "n/b": "2", "n/c": "3"}, set)
			if err := tear(dir); err != nil {
				t.Fatal(err)
			}
			var p Publisher
			if !mustPublish(t, &p, dir, text(set)) {
				t.Error("not changed")
			}
			wantVisible(t, dir, set)
			wantTidy(t, dir, 2)
			if mustPublish(t, new(Publisher), dir, text(set)) {
				t.Error("changed again")
			}
		})
	}
}
