package figures

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// EachFileSystem runs f as the sub-tests "tmpfs" and "ext4" with temporary directories
// on such a file system, which is a fresh one: ext4 is slow for minutes in using inodes
// again that were freed. It does so in a mount namespace by [nstest.Run], whose rules
// hold; without root there is no ext4.
func EachFileSystem(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	nstest.Run(t, func(t *testing.T) {
		on := func(name, dir string) {
			t.Run(name, func(t *testing.T) {
				t.Setenv("TMPDIR", dir)
				f(t)
			})
		}
		memory, disk := t.TempDir(), t.TempDir()
		mountOn(t, "tmpfs", memory, "tmpfs")
		on("tmpfs", memory)
		if FreshExt4(t, disk) {
			on("ext4", disk)
		}
	})
}

// FreshExt4 mounts a new ext4 of 8 GiB in a sparse file on dir until the test ends,
// where the process may: it returns false where there are no loop devices for it. The
// caller is in a mount namespace of its own. The file is on a disk, lest syncing cost
// nothing: in /var/tmp where temporary directories are in memory.
func FreshExt4(t *testing.T, dir string) bool {
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	control.Close()
	testtool.Need(t, "mkfs.ext4")
	device := loopdev.Of(t, onDisk(t, 8<<30), 0)
	if out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", device.Path).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	mountOn(t, device.Path, dir, "ext4")
	return true
}

// onDisk makes a sparse file.
func onDisk(t *testing.T, size int64) string {
	t.Helper()
	dir := ""
	if fileSystem(os.TempDir()) == "tmpfs" {
		dir = "/var/tmp"
	}
	file, err := os.CreateTemp(dir, "figures-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(file.Name()) })
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return file.Name()
}

func mountOn(t *testing.T, source, dir, fstype string) {
	t.Helper()
	if err := unix.Mount(source, dir, fstype, 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}
