package volumetest

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
	h.assertNothingMounted(t)
	for _, left := range h.leftovers(t) {
		t.Errorf("left behind: %s", left)
	}
}

// AssertTornDown is AssertClean for tests of a plugin alone. It bears with the
// empty directories of a pod that its plugins share, which whoever runs the
// plugins removes when the pod is gone: pods/<uid>, its "volumes" and
// "plugins", and in these one for each plugin.
func (h *Host) AssertTornDown(t testing.TB) {
	t.Helper()
	h.assertNothingMounted(t)
	for _, left := range h.leftovers(t) {
		if !isShared(left) {
			t.Errorf("left behind: %s", left)
		}
	}
}

func (h *Host) assertNothingMounted(t testing.TB) {
	t.Helper()
	for _, e := range h.mounts(t) {
		t.Errorf("still mounted: %s %s on %s", e.FSType, e.Source, e.Target)
	}
}

// mounts are those on the fake, or below the root on a kernel that has others.
func (h *Host) mounts(t testing.TB) []mount.Entry {
	t.Helper()
	return slices.DeleteFunc(h.allMounts(t), func(e mount.Entry) bool {
		return e.Target == "/" || h.Fake == nil && !strings.HasPrefix(e.Target, h.RootDir+"/")
	})
}

func (h *Host) allMounts(t testing.TB) []mount.Entry {
	t.Helper()
	mounts := table.Of(h.GetMounter())
	entries, err := mounts.All()
	if err != nil {
		t.Error(err)
	}
	return entries
}

// leftovers lists what is below the root, relative to it, but for the
// directories "pods" and "plugins" themselves. Directories end in a slash.
func (h *Host) leftovers(t testing.TB) []string {
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
