package durable_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// On a full and on a read-only file system the old file stays, nothing else is
// left, and the error says what to do.
func TestFullAndReadOnlyFileSystem(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "record")
		if err := durable.WriteFile(path, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		fails := func(err error, want unix.Errno, advice string) {
			t.Helper()
			if !errors.Is(err, want) || !strings.Contains(err.Error(), advice) || !strings.Contains(err.Error(), path) {
				t.Errorf("err = %v, want %v and advice with %q", err, want, advice)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
				t.Errorf("contents = %q, %v", got, err)
			}
			if diff := cmp.Diff([]string{"record"}, names(t, dir)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
		fails(durable.WriteFile(path, make([]byte, 1<<20), 0o600), unix.ENOSPC, "full")
		if err := durable.Create(filepath.Join(dir, "large"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("Create: %v", err)
		}
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		fails(durable.WriteFile(path, []byte("new"), 0o600), unix.EROFS, "read-only")
		fails(durable.Remove(path), unix.EROFS, "read-only")
	})
}
