//go:build linux

package atomicdir

import (
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
