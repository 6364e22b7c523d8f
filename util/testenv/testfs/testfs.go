// Package testfs mounts small file systems for tests that have a mount namespace of their
// own, by package nstest. Each is unmounted when the test ends.
package testfs

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// Tmpfs mounts a tmpfs at a directory.
func Tmpfs(t testing.TB, dir string) {
	t.Helper()
	mountAt(t, "tmpfs", dir, "tmpfs")
}

// Ext4 mounts a new ext4 of 16 MiB at a directory. It needs root outside of user
// namespaces, and mkfs.ext4: else the test is skipped, see [testtool.Need].
func Ext4(t testing.TB, dir string) {
	t.Helper()
	testtool.Need(t, "mkfs.ext4")
	device := loopdev.New(t, 16<<20)
	if out, err := exec.Command("mkfs.ext4", "-q", device.Path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	mountAt(t, device.Path, dir, "ext4")
}

func mountAt(t testing.TB, source, dir, fstype string) {
	t.Helper()
	if err := unix.Mount(source, dir, fstype, 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
}
