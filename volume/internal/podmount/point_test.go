package podmount_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/volume/internal/podmount"
)

func TestPoints(t *testing.T) {
	for name, dir := range map[string]bool{"directory": true, "file": false} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a", "b", "point")
			if err := podmount.RemovePoint(path); err != nil {
				t.Errorf("removing nothing: %v", err)
			}
			if err := podmount.MakePoint(path, dir); err != nil {
				t.Fatal(err)
			}
			for _, kind := range []bool{true, false} {
				if err := podmount.MakePoint(path, kind); !errors.Is(err, fs.ErrExist) {
					t.Errorf("making it again: %v", err)
				}
			}
			if info, err := os.Lstat(path); err != nil || info.IsDir() != dir {
				t.Errorf("there is %v, %v", info, err)
			}
			for range 2 {
				if err := podmount.RemovePoint(path); err != nil {
					t.Error(err)
				}
			}
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("it is left: %v", err)
			}
		})
	}
}

func TestRemovePointKeepsWhatIsSomebodys(t *testing.T) {
	base := t.TempDir()
	file, dir, link := filepath.Join(base, "file"), filepath.Join(base, "dir"), filepath.Join(base, "link")
	err := errors.Join(os.WriteFile(file, []byte("precious"), 0o600), os.MkdirAll(filepath.Join(dir, "precious"), 0o700), os.Symlink("nowhere", link))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, dir, link} {
		if err := podmount.RemovePoint(path); err == nil {
			t.Errorf("%s was removed", path)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
	if err := podmount.RemovePoint(dir); !errors.As(err, new(*podmount.NotEmptyError)) {
		t.Errorf("of a full directory: %v", err)
	}
}

// What lies around a mount point lets nobody else in, whatever the umask is.
func TestMakePointLetsNobodyElseIn(t *testing.T) {
	before := unix.Umask(0)
	t.Cleanup(func() { unix.Umask(before) })
	dir := t.TempDir()
	for name, isDir := range map[string]bool{"a/b/dir": true, "c/d/file": false} {
		path := filepath.Join(dir, name)
		if err := podmount.MakePoint(path, isDir); err != nil {
			t.Fatal(err)
		}
		for p := path; p != dir; p = filepath.Dir(p) {
			want := fs.ModeDir | 0o750
			if p == path && !isDir {
				want = 0o640
			}
			if info, err := os.Lstat(p); err != nil || info.Mode() != want {
				t.Errorf("%s has mode %v, %v; want %v", p, info.Mode(), err, want)
			}
		}
	}
}
