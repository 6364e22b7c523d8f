package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/util/durable"
)

// What is open stays the place, wherever its name leads by now.
func TestCreateAndRemoveInAnOpenDirectory(t *testing.T) {
	was := filepath.Join(t.TempDir(), "was")
	now := was + ".moved"
	if err := os.Mkdir(was, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(was)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := errors.Join(os.Rename(was, now), os.Symlink("/nonexistent", was)); err != nil {
		t.Fatal(err)
	}
	if err := durable.CreateAt(dir, "file", []byte("new"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := durable.CreateAt(dir, "file", []byte("other"), 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second CreateAt = %v", err)
	}
	file := filepath.Join(now, "file")
	if data, err := os.ReadFile(file); err != nil || string(data) != "new" {
		t.Errorf("the file has %q, %v", data, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for range 2 {
		if err := durable.RemoveAt(dir, "file"); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(now); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "../file", "a\x00"} {
		if err := durable.CreateAt(dir, name, nil, 0o600); !errors.As(err, new(*durable.Error)) {
			t.Errorf("CreateAt(%q) = %v", name, err)
		}
		if err := durable.RemoveAt(dir, name); !errors.As(err, new(*durable.Error)) {
			t.Errorf("RemoveAt(%q) = %v", name, err)
		}
	}
}
