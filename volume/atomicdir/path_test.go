//go:build linux

package atomicdir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/volume/fileset"
)

// Whatever set of paths is accepted can be published, creates nothing outside
// the directory, and can be read back under the paths that were given. What
// CheckPath refuses, Publish refuses.
func FuzzCheckPath(f *testing.F) {
	for _, seed := range [][2]string{
		{"a", "b"}, {"a", "a/b"}, {"../x", "y"}, {"..data", "y"}, {"a/../../x", "a"}, {"/etc/x", "x"}, {"a//b", "a/b"},
		{"./a", "a/."}, {"...", "..a/b"}, {"a\x00", ""}, {"..data_tmp", "..2026_01_01_00_00_00.1"}, {"x/..", "x/..y"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		base := t.TempDir()
		dir := filepath.Join(base, "parent", "volume")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		files := map[string]fileset.File{a: {Data: []byte("a"), Mode: 0o644}, b: {Data: []byte("b"), Mode: 0o600}}
		_, err := new(Publisher).Publish(t.Context(), dir, files)
		for path := range files {
			if fileset.CheckPath(path) != nil && err == nil {
				t.Errorf("%q was published although it is refused", path)
			}
		}
		if err == nil {
			for path, file := range files {
				if got, err := os.ReadFile(filepath.Join(dir, filepath.Clean(path))); err != nil || string(got) != string(file.Data) {
					t.Errorf("%q reads %q, %v", path, got, err)
				}
			}
		} else if _, refused := errors.AsType[*fileset.PathError](err); !refused {
			t.Errorf("neither published nor refused: %v", err)
		} else if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
			t.Errorf("refused, but something was made: %v, %v", entries, err)
		}
		for _, outside := range []string{base, filepath.Dir(dir)} {
			if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
				t.Errorf("something was made outside: %v, %v", entries, err)
			}
		}
	})
}
