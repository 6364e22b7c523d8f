package table

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/openat"
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

// kernelUUID asks the kernel for a file system's UUID. It is empty where there is
// none, or the kernel does not tell.
func kernelUUID(dir *os.File, fstype string) string {
	// A descriptor with O_PATH takes no ioctl(2).
	readable, err := openat.Dir(dir, ".")
	if err != nil {
		return ""
	}
	defer readable.Close()
	fd := int(readable.Fd())
	if uuid := anyUUID(fd); uuid != "" {
		return uuid
	}
	switch fstype {
	case "btrfs":
		return btrfsUUID(fd)
	case "ext2", "ext3", "ext4":
		return ext4UUID(fd)
	case "xfs":
		return xfsUUID(fd)
	}
	return ""
}

// anyUUID asks any file system (FS_IOC_GETFSUUID of linux/fs.h, Linux 6.9).
func anyUUID(fd int) string {
	const request = 0x80111500 // _IOR(0x15, 0, struct fsuuid2)
	var answer struct {
		Len  uint8
		UUID [16]byte
	}
	if !ask(fd, request, unsafe.Pointer(&answer)) || int(answer.Len) > len(answer.UUID) || answer.UUID == [16]byte{} {
		return ""
	}
	return formatUUID(answer.UUID[:answer.Len])
}

// btrfsUUID is BTRFS_IOC_FS_INFO of linux/btrfs.h.
func btrfsUUID(fd int) string {
	const request = 0x8400941f // _IOR(0x94, 31, struct btrfs_ioctl_fs_info_args)
	var answer struct {
		MaxID, Devices uint64
		UUID           [16]byte
		_              [992]byte
	}
	if !ask(fd, request, unsafe.Pointer(&answer)) {
		return ""
	}
	return formatUUID(answer.UUID[:])
}

// ext4UUID is EXT4_IOC_GETFSUUID of the kernel's ext4, Linux 6.0.
func ext4UUID(fd int) string {
	const request = 0x8008662c // _IOR('f', 44, struct fsuuid)
	answer := struct {
		Len, Flags uint32
		UUID       [16]byte
	}{Len: 16}
	if !ask(fd, request, unsafe.Pointer(&answer)) || answer.Len != 16 {
		return ""
	}
	return formatUUID(answer.UUID[:])
}

// xfsUUID is XFS_IOC_FSGEOMETRY_V4 of xfs_fs.h, which all kernels have.
func xfsUUID(fd int) string {
	const request = 0x8070587c // _IOR('X', 124, struct xfs_fsop_geom_v4)
	var answer struct {
		_    [64]byte
		UUID [16]byte
		_    [32]byte
	}
	if !ask(fd, request, unsafe.Pointer(&answer)) {
		return ""
	}
	return formatUUID(answer.UUID[:])
}

func ask(fd int, request uintptr, answer unsafe.Pointer) bool {
	return eintr.Do(func() error {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(answer)); errno != 0 {
			return errno
		}
		return nil
	}) == nil
}

// formatUUID writes 16 bytes as blkid(8) does, and fewer in hexadecimal.
func formatUUID(b []byte) string {
	s := hex.EncodeToString(b)
	if len(b) != 16 {
		return s
	}
	return strings.Join([]string{s[:8], s[8:12], s[12:16], s[16:20], s[20:]}, "-")
}
