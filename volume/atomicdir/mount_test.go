//go:build linux

package atomicdir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// A volume that is full keeps its version, and the next smaller one fits.
func TestFullFileSystem(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
			t.Fatal(err)
		}
		old := map[string]string{"a": "1", "n/b": "2"}
		var p Publisher
		mustPublish(t, &p, dir, text(old))
		_, err := p.Publish(t.Context(), dir, text(map[string]string{"a": "2", "c": strings.Repeat("x", 1<<20)}))
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "size limit") {
			t.Errorf("err = %v, want ENOSPC and what to do", err)
		}
		wantVisible(t, dir, old)
		wantTidy(t, dir, len(old))
		mustPublish(t, &p, dir, text(map[string]string{"a": "3"}))
		wantVisible(t, dir, map[string]string{"a": "3"})
	})
}

// Something mounted in an outdated version is not deleted, the new version is
// published all the same, and the error says which mount is in the way.
func TestMountInOutdatedVersion(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		var p Publisher
		mustPublish(t, &p, dir, text(map[string]string{"n/a": "1"}))
		mountPoint := filepath.Join(versions(t, dir)[0], "n")
		if err := unix.Mount("tmpfs", mountPoint, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(mountPoint, unix.MNT_DETACH) })
		if err := os.WriteFile(filepath.Join(mountPoint, "kept"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		mustPublish(t, &p, dir, text(map[string]string{"n/a": "2"}))
		changed, err := p.Publish(t.Context(), dir, text(map[string]string{"n/a": "3"}))
		mounted, ok := errors.AsType[*removetree.MountError](err)
		if !changed || !ok || mounted.Path != mountPoint {
			t.Errorf("changed %v, err = %v, want a MountError for %s", changed, err, mountPoint)
		}
		if failure, ok := errors.AsType[*Error](err); !ok || !failure.Published {
			t.Errorf("the error does not say that it is published: %v", err)
		}
		wantVisible(t, dir, map[string]string{"n/a": "3"})
		if _, err := os.Stat(filepath.Join(mountPoint, "kept")); err != nil {
			t.Error(err)
		}
		if changed, err := p.Publish(t.Context(), dir, text(map[string]string{"n/a": "3"})); changed || err != nil {
			t.Errorf("again: %v, %v, want that nothing is left to do", changed, err)
		}
	})
}

// The group of a directory with setgid, which is how a volume gets its
// fsGroup, reaches nested directories and files.
func TestSetgidDirectory(t *testing.T) {
	dir := t.TempDir()
	gid := os.Getgid()
	if os.Geteuid() == 0 {
		gid = 4321
	}
	if err := os.Chown(dir, -1, gid); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o775|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, new(Publisher), dir, text(map[string]string{"n/a": "1"}))
	for name, want := range map[string]os.FileMode{"..data/n": os.ModeDir | os.ModeSetgid | 0o755, "n/a": 0o644} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := int(info.Sys().(*syscall.Stat_t).Gid); got != gid || info.Mode() != want {
			t.Errorf("%s: group %d, mode %v, want %d and %v", name, got, info.Mode(), gid, want)
		}
	}
	if mustPublish(t, new(Publisher), dir, text(map[string]string{"n/a": "1"})) {
		t.Error("changed although it was the same")
	}
}
