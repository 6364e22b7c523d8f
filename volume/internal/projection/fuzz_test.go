package projection_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// FuzzItems feeds hostile paths, modes and keys: what is accepted lies within
// the volume, under the path and with the mode that was asked for, and what is
// refused has touched nothing.
func FuzzItems(f *testing.F) {
	for _, path := range []string{"a", "a/b", "../a", "a/../../b", "/etc/passwd", "..data", "..data/x", "./..data_tmp", "a/..b", "..", ".", "",
		"a//b/", "a\x00b", strings.Repeat("a/", 100) + "a", strings.Repeat("x", 300), "\xff\xfe", "a\nb", "~", "...", "a/.."} {
		f.Add(path, int32(0o644), "key", path)
	}
	f.Add("a", int32(-1), "key", "b")
	f.Add("a", int32(0o1777), "a", "a/b")
	f.Fuzz(func(t *testing.T, path string, mode int32, key, otherPath string) {
		source := fromSources(
			projectConfigMap("app", v1.KeyToPath{Key: "item", Path: path, Mode: &mode}),
			projectSecret("tls"),
			projectConfigMap("app", v1.KeyToPath{Key: "item", Path: otherPath}))
		b := newBench(t, source)
		b.host.Add(configMap("app", map[string]string{"item": "canary"}), secretObject("tls", map[string]string{key: "canary"}))
		m, err := b.plugin.NewMounter(b.spec, b.pod)
		if err == nil {
			err = m.SetUp(t.Context(), volume.MounterArgs{})
		}
		if err != nil {
			if volume.IsUncertain(err) || strings.Contains(err.Error(), "canary") {
				t.Errorf("%v", err)
			}
			b.host.AssertTornDown(t)
			return
		}
		info, err := os.Stat(filepath.Join(m.GetPath(), path))
		if err != nil {
			t.Fatalf("%q was accepted but is not there: %v", path, err)
		}
		if path != key && (info.Mode().Perm() != fs.FileMode(mode) || mode&^0o777 != 0) {
			t.Errorf("mode %v, want %#o", info.Mode(), mode)
		}
		for _, outside := range canariesOutside(t, b.host.RootDir, m.GetPath()) {
			t.Errorf("%s lies outside the volume", outside)
		}
	})
}

// canariesOutside returns the files with the canary, and all links, below root
// but not below the volume.
func canariesOutside(t *testing.T, root, volumeDir string) (outside []string) {
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == volumeDir {
			return filepath.SkipDir
		}
		if entry.IsDir() {
			return nil
		}
		if data, err := os.ReadFile(path); err != nil || strings.Contains(string(data), "canary") {
			outside = append(outside, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return outside
}
