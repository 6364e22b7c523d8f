package justmade

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
)

func open(t *testing.T, dir string) int {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func TestOnlyWhatWasJustMadePasses(t *testing.T) {
	for name, tc := range map[string]struct {
		swap func(dir string) error
		want error
	}{
		"as it was made":   {func(string) error { return nil }, nil},
		"fewer bits":       {func(dir string) error { return os.Chmod(dir, 0o700) }, nil},
		"set-group-id":     {func(dir string) error { return os.Chmod(dir, 0o750|os.ModeSetgid) }, nil},
		"more permissions": {func(dir string) error { return os.Chmod(dir, 0o755) }, ErrOther},
		"not empty":        {func(dir string) error { return os.WriteFile(filepath.Join(dir, "file"), nil, 0o600) }, ErrOther},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "made")
			if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o750), tc.swap(dir)); err != nil {
				t.Fatal(err)
			}
			if err := Check(open(t, parent), open(t, dir), 0o750); !errors.Is(err, tc.want) {
				t.Errorf("Check = %v, want %v", err, tc.want)
			}
			if left, err := os.ReadDir(parent); err != nil || len(left) != 1 {
				t.Errorf("left %v, %v", left, err)
			}
		})
	}
}

func TestOwner(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		parent := open(t, t.TempDir())
		for uid, want := range map[uint32]bool{uint32(os.Geteuid()): true, 4711: false} {
			if ours, err := Owns(parent, uid); err != nil || ours != want {
				t.Errorf("Owns(%d) = %v, %v", uid, ours, err)
			}
		}
	})
}
