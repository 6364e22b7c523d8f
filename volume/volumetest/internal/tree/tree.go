// Package tree makes directory trees for checks and compares them.
package tree

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// Snapshot describes everything below dir, and dir itself, without following
// links: kind, mode, owner, size, content or target.
func Snapshot(t testing.TB, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		found[rel], err = describe(path, entry)
		return err
	})
	if err != nil {
		t.Errorf("looking at %s: %v", dir, err)
	}
	return found
}

func describe(path string, entry fs.DirEntry) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "", err
	}
	text := fmt.Sprintf("mode %o owner %d:%d", st.Mode, st.Uid, st.Gid)
	switch {
	case entry.Type() == fs.ModeSymlink:
		target, err := os.Readlink(path)
		return text + " -> " + target, err
	case entry.Type().IsRegular():
		content, err := os.ReadFile(path)
		return fmt.Sprintf("%s %q", text, content), err
	}
	return text, nil
}

// AssertSame fails the test if two snapshots differ.
func AssertSame(t testing.TB, what string, before, after map[string]string) {
	t.Helper()
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("%s changed (-before +after):\n%s", what, diff)
	}
}

// AssertKept is AssertSame but for what is new.
func AssertKept(t testing.TB, what string, before, after map[string]string) {
	t.Helper()
	maps.DeleteFunc(after, func(name, _ string) bool {
		_, old := before[name]
		return !old
	})
	AssertSame(t, what, before, after)
}

// New returns an empty directory for the time of the test, without links in its path.
func New(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Write makes files in dir, by their paths there, and the directories on the way.
func Write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), fs.FileMode(0o755)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(files[name]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
