package table

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/util/eintr"
)

// byUUIDDir has udev's links to devices by the UUID of the file system on them.
const byUUIDDir = "/dev/disk/by-uuid"

// fileSystemNamer is implemented by tables that are not the kernel's. It is false
// for a mount that stands for the real files.
type fileSystemNamer interface {
	FileSystemNames(mount.Entry) (names []string, ok bool)
}

// FileSystemNames returns the mount of an open directory, and the unique names of
// its file system, the best first. All mounts of a file system have the same
// names. A file system has other names if another disk is mounted in its place,
// or if it was made anew. A copy of the whole disk has the same names.
//
//   - "uuid:0c9e…" is the file system's own UUID, as the kernel and udev know it.
//     It stays the same after a reboot.
//   - "source:nfs4:server:/path" is a server's file system. It stays the same,
//     too.
//   - A file system in memory, such as tmpfs, has a UUID or
//     "boot:<boot>:<device>:<id>", which the next boot does not have.
//   - A file system on a block device without a known UUID has no name. Then the
//     device (Entry.Device) is its best name.
//
// It may block if the file system does not answer. The error is as of [Holding].
func FileSystemNames(t mount.Table, dir *os.File) (mount.Entry, []string, error) {
	e, err := Holding(t, dir)
	if err != nil {
		return e, nil, err
	}
	if own, ok := t.(fileSystemNamer); ok {
		if names, ok := own.FileSystemNames(e); ok {
			return e, names, nil
		}
		if e, err = Holding(mounttable.Uncached{}, dir); err != nil {
			return e, nil, err
		}
	}
	return e, kernelNames(dir, e, byUUIDDir), nil
}

func kernelNames(dir *os.File, e mount.Entry, byUUID string) (names []string) {
	add := func(uuid string) {
		if name := "uuid:" + uuid; uuid != "" && (len(names) == 0 || names[0] != name) {
			names = append(names, name)
		}
	}
	add(kernelUUID(dir, e.FSType))
	add(udevUUID(e.Device, byUUID))
	if len(names) > 0 || unix.Major(e.Device) != 0 {
		return names
	}
	if strings.HasPrefix(e.Source, "/dev/") {
		return nil // a device's name says nothing
	}
	if strings.ContainsAny(e.Source, "/:") {
		return []string{"source:" + e.FSType + ":" + e.Source}
	}
	return []string{fmt.Sprintf("boot:%s:%s:%x", hostSuperblocks().boot(), mounttable.DeviceNumber(e.Device), fileSystemID(dir))}
}

// fileSystemID is the one of statfs(2). A tmpfs has a random number since Linux
// 5.13, which tells it from a later one of the same device number. 0 means none.
func fileSystemID(dir *os.File) uint64 {
	var st unix.Statfs_t
	if err := eintr.Do(func() error { return unix.Fstatfs(int(dir.Fd()), &st) }); err != nil {
		return 0
	}
	return uint64(uint32(st.Fsid.Val[0]))<<32 | uint64(uint32(st.Fsid.Val[1]))
}

// udevUUID looks for the device among udev's links.
func udevUUID(device uint64, dir string) string {
	links, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, link := range links {
		var st unix.Stat_t
		err := eintr.Do(func() error { return unix.Stat(filepath.Join(dir, link.Name()), &st) })
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && uint64(st.Rdev) == device {
			return strings.ToLower(link.Name())
		}
	}
	return ""
}
