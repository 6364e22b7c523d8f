package table_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

func namesAt(t *testing.T, mounts mount.Table, path string) (mount.Entry, []string) {
	t.Helper()
	for _, flags := range []int{os.O_RDONLY, unix.O_PATH} {
		dir, err := os.OpenFile(path, flags|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		e, names, err := table.FileSystemNames(mounts, dir)
		dir.Close()
		if err != nil || len(names) == 0 {
			t.Fatalf("of %s: %q, %v", path, names, err)
		}
		if flags == unix.O_PATH {
			return e, names
		}
	}
	return mount.Entry{}, nil
}

// toldBy asks the file system at a path for its UUID.
func toldBy(t *testing.T, ask func(fd int) string, path string) string {
	t.Helper()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	return ask(int(dir.Fd()))
}

// newUUID makes a UUID, as the machine's other mounts of btrfs and xfs must have another.
func newUUID(t *testing.T) string {
	t.Helper()
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(id))
}

// A file system has its names wherever it is mounted, and no other one has them.
func TestFileSystemNames(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		mounts := table.Kernel()
		at := func(source, fstype string, flags uintptr) string {
			path, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount(source, path, fstype, flags, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
			return path
		}
		first, second := at("tmpfs", "tmpfs", 0), at("tmpfs", "tmpfs", 0)
		again := at(first, "", unix.MS_BIND)
		e, names := namesAt(t, mounts, first)
		_, others := namesAt(t, mounts, second)
		_, same := namesAt(t, mounts, again)
		if e.Target != first || !slices.Equal(names, same) || slices.Contains(others, names[0]) {
			t.Errorf("%q at %s, %q at its bind, %q of another", names, e.Target, same, others)
		}
		if !strings.HasSuffix(t.Name(), "/root") {
			return // no block devices here
		}
		testtool.Need(t, "mkfs.ext4", "mkfs.btrfs", "mkfs.xfs")
		disk, ext4ID := loopdev.New(t, 16<<20), newUUID(t)
		if out, err := exec.Command("mkfs.ext4", "-q", "-U", ext4ID, disk.Path).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		path := at(disk.Path, "ext4", 0)
		if _, names := namesAt(t, mounts, path); names[0] != "uuid:"+ext4ID {
			t.Errorf("of ext4: %q", names)
		}
		other, id := loopdev.New(t, 128<<20), newUUID(t)
		if out, err := exec.Command("mkfs.btrfs", "-q", "-U", id, other.Path).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if _, names := namesAt(t, mounts, at(other.Path, "btrfs", 0)); names[0] != "uuid:"+id {
			t.Errorf("of btrfs: %q", names)
		}
		// Older kernels are asked as each file system has it.
		third, xfsID := loopdev.New(t, 512<<20), newUUID(t)
		if out, err := exec.Command("mkfs.xfs", "-q", "-m", "uuid="+xfsID, third.Path).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if uuid := toldBy(t, table.XFSUUID, at(third.Path, "xfs", 0)); uuid != xfsID {
			t.Errorf("of xfs: %q", uuid)
		}
		if uuid := toldBy(t, table.Ext4UUID, path); uuid != ext4ID {
			t.Errorf("of ext4: %q", uuid)
		}
		if uuid := toldBy(t, table.Ext4UUID, first); uuid != "" {
			t.Errorf("ext4's, of a tmpfs: %q", uuid)
		}
		// Where the kernel cannot tell, udev can.
		var st unix.Stat_t
		if err := unix.Stat(disk.Path, &st); err != nil {
			t.Fatal(err)
		}
		byUUID := t.TempDir()
		if err := os.Symlink(disk.Path, filepath.Join(byUUID, "AB12-CD34")); err != nil {
			t.Fatal(err)
		}
		if uuid := table.UdevUUID(uint64(st.Rdev), byUUID); uuid != "ab12-cd34" {
			t.Errorf("udev says %q", uuid)
		}
		if uuid := table.UdevUUID(uint64(st.Rdev)+1, byUUID); uuid != "" {
			t.Errorf("udev says %q of another device", uuid)
		}
	})
}

func TestFileSystemNamesOfAFake(t *testing.T) {
	fake := fakemount.New()
	t.Cleanup(func() { fake.Close() })
	dir := t.TempDir()
	at := func(name, source, fstype string, options ...string) string {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := mount.Mount(t.Context(), fake, mount.Request{Source: source, Target: path, FSType: fstype, Options: options}); err != nil {
			t.Fatal(err)
		}
		return path
	}
	_, first := namesAt(t, fake.Table(), at("a", "tmpfs", "tmpfs"))
	_, second := namesAt(t, fake.Table(), at("b", "tmpfs", "tmpfs"))
	_, disk := namesAt(t, fake.Table(), at("c", "/dev/sdb", "ext4"))
	_, again := namesAt(t, fake.Table(), at("d", "/dev/sdb", "ext4"))
	if slices.Equal(first, second) || !slices.Equal(disk, again) || slices.Equal(disk, first) {
		t.Errorf("%q, %q; %q, %q", first, second, disk, again)
	}
	// What is not mounted on the fake is what is really there.
	e, really := namesAt(t, fake.Table(), "/proc")
	mounts := table.Kernel()
	if real, names := namesAt(t, mounts, "/proc"); !slices.Equal(names, really) || real.ID != e.ID {
		t.Errorf("%q, want %q", really, names)
	}
}

func TestNamesWithoutUUID(t *testing.T) {
	dir, err := os.Open("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	nowhere := t.TempDir()
	for source, want := range map[string]string{"server:/path": "source:nfs4:server:/path", "proc": "boot:"} {
		fstype := "nfs4"
		if source == "proc" {
			fstype = "proc"
		}
		names := table.KernelNames(dir, mount.Entry{Source: source, FSType: fstype, Device: unix.Mkdev(0, 5)}, nowhere)
		if len(names) != 1 || !strings.HasPrefix(names[0], want) {
			t.Errorf("%s: %q", source, names)
		}
	}
	if names := table.KernelNames(dir, mount.Entry{Source: "/dev/sdb", FSType: "iso9660", Device: unix.Mkdev(8, 5)}, nowhere); len(names) > 0 {
		t.Errorf("of a device: %q", names)
	}
}
