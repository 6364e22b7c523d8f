package durable_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
)

func TestInPlace(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(path string) error
		want   bool
		err    error
	}{
		"nothing":              {func(string) error { return nil }, true, nil},
		"renamed there and to": {func(p string) error { return errors.Join(os.Rename(p, p+"2"), os.Rename(p+"2", p)) }, true, nil},
		"removed":              {os.Remove, false, nil},
		"replaced":             {func(p string) error { return errors.Join(os.Rename(p, p+"2"), os.WriteFile(p, nil, 0o600)) }, false, nil},
		"parent removed":       {func(p string) error { return os.RemoveAll(filepath.Dir(p)) }, false, nil},
		"parent is a file": {func(p string) error {
			return errors.Join(os.RemoveAll(filepath.Dir(p)), os.WriteFile(filepath.Dir(p), nil, 0o600))
		}, false, nil},
		"parent is a loop": {func(p string) error {
			return errors.Join(os.RemoveAll(filepath.Dir(p)), os.Symlink(filepath.Dir(p), filepath.Dir(p)))
		}, false, unix.ELOOP},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "parent", "file")
			if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			open, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer open.Close()
			if err := tc.change(path); err != nil {
				t.Fatal(err)
			}
			if got, err := durable.InPlace(open, path); got != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("%v, %v; want %v, %v", got, err, tc.want, tc.err)
			}
		})
	}
}
