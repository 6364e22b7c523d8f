package fakehost

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
)

// AssertClean fails the test if anything is mounted, or anything is left below
// the root but its empty directories "pods" and "plugins".
func (h *Host) AssertClean(t testing.TB) {
	t.Helper()
	h.AssertNothingMounted(t)
	for _, left := range h.Leftovers(t) {
		t.Errorf("left behind: %s", left)
	}
}

// AssertTornDown is AssertClean for tests of a plugin alone. It bears with the
// empty directories of a pod that its plugins share, which the caller of the plugins
// removes when the pod is gone: pods/<uid>, its "volumes" and "plugins", and in these
// one for each plugin. It also bears with the directories for which one of mayStay returns
// true, given their absolute paths, but not with the files in them.
func (h *Host) AssertTornDown(t testing.TB, mayStay ...func(dir string) bool) {
	t.Helper()
	h.AssertNothingMounted(t)
	for _, left := range h.Leftovers(t) {
		dir, isDir := strings.CutSuffix(left, "/")
		stays := func(f func(string) bool) bool { return f(filepath.Join(h.RootDir, dir)) }
		if !isShared(left) && (!isDir || !slices.ContainsFunc(mayStay, stays)) {
			t.Errorf("left behind: %s", left)
		}
	}
}

// AssertNothingMounted fails the test for each of [Host.Mounts].
func (h *Host) AssertNothingMounted(t testing.TB) {
	t.Helper()
	for _, e := range h.Mounts(t) {
		t.Errorf("still mounted: %s %s on %s", e.FSType, e.Source, e.Target)
	}
}

// Mounts are those on the fake, or below the root on a kernel that has others, oldest
// first.
func (h *Host) Mounts(t testing.TB) []mount.Entry {
	t.Helper()
	mounts := table.Of(h.GetMounter())
	entries, err := mounts.All()
	if err != nil {
		t.Error(err)
	}
	return slices.DeleteFunc(entries, func(e mount.Entry) bool {
		return e.Target == "/" || h.Fake == nil && !strings.HasPrefix(e.Target, h.RootDir+"/")
	})
}

// Leftovers lists all entries below the root, relative to it, but for the
// directories "pods" and "plugins" themselves. Directories end in a slash.
func (h *Host) Leftovers(t testing.TB) []string {
	t.Helper()
	var left []string
	err := filepath.WalkDir(h.RootDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == h.RootDir {
			return err
		}
		rel, err := filepath.Rel(h.RootDir, path)
		if entry.IsDir() {
			rel += "/"
		}
		if rel != "pods/" && rel != "plugins/" {
			left = append(left, rel)
		}
		return err
	})
	if err != nil {
		t.Errorf("looking for leftovers: %v", err)
	}
	return left
}

// isShared reports whether a leftover is a directory that all volumes of a
// pod, or all of one plugin in a pod, share.
func isShared(left string) bool {
	if !strings.HasSuffix(left, "/") {
		return false
	}
	parts := strings.Split(strings.TrimSuffix(left, "/"), "/") // pods <uid> volumes <plugin>
	if parts[0] != "pods" || len(parts) > 4 {
		return false
	}
	return len(parts) < 3 || parts[2] == "volumes" || parts[2] == "plugins"
}
