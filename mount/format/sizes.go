package format

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sizes are a device's size and its file system's, in bytes. The zero value has
// no room.
type sizes struct {
	fstype             string
	device, filesystem int64
	block              int64  // smallest step by which it grows
	id                 uint64 // of the device within the file system: btrfs
}

func (s sizes) hasRoom() bool { return s.block > 0 && s.device-s.filesystem >= s.block }

// sizer returns what finds the size of a file system, or nil.
func sizer(s Signature) func(device *device, mountPoint string) (sizes, error) {
	if s.Kind != Filesystem {
		return nil
	}
	switch s.Type {
	case "ext2", "ext3", "ext4":
		return extSize
	case "xfs":
		return xfsSize
	case "btrfs":
		return btrfsSize
	}
	return nil
}

// extSize reads the superblock, which the mounted file system keeps in the
// cache that reads of the device see.
func extSize(device *device, mountPoint string) (sizes, error) {
	if other, err := hasOther(mountPoint, device.node.number); err != nil || other {
		return sizes{}, cmp.Or(err, fmt.Errorf("%s is not mounted at %s, but something else is", device.Name(), mountPoint))
	}
	b := make([]byte, 1024)
	if _, err := device.ReadAt(b, extSuperblock); err != nil {
		return sizes{}, err
	}
	shift := binary.LittleEndian.Uint32(b[0x18:])
	if shift > 6 { // 64 KiB is the largest block
		return sizes{}, fmt.Errorf("the superblock has an impossible block size, 1024<<%d", shift)
	}
	blocks := uint64(binary.LittleEndian.Uint32(b[0x4:]))
	const is64bit = 0x80
	if binary.LittleEndian.Uint32(b[0x60:])&is64bit != 0 {
		blocks |= uint64(binary.LittleEndian.Uint32(b[0x150:])) << 32
	}
	block := int64(1024) << shift
	return sizes{filesystem: int64(blocks) * block, block: block}, nil
}

// hasOther reports whether something else than a device is mounted at a path. Nothing is where
// an unmounted file system grows.
func hasOther(path string, number uint64) (bool, error) {
	var at unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, &at)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return at.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 && unix.Mkdev(at.Dev_major, at.Dev_minor) != number, nil
}

// xfsGeometry is struct xfs_fsop_geom_v1 of the kernel's xfs_fs.h, as far as it
// is used, at its full size.
type xfsGeometry struct {
	BlockSize  uint32
	_          [7]uint32
	DataBlocks uint64
	_          [72]byte
}

// xfsSize asks the mounted file system: its superblock on the device lags
// behind.
func xfsSize(device *device, mountPoint string) (sizes, error) {
	const getGeometry = 0x80705864 // XFS_IOC_FSGEOMETRY_V1
	var g xfsGeometry
	number, err := askMounted(mountPoint, getGeometry, unsafe.Pointer(&g))
	if err != nil {
		return sizes{}, err
	}
	if device.node.number != number {
		return sizes{}, fmt.Errorf("%s is not mounted at %s", device.Name(), mountPoint)
	}
	return sizes{filesystem: int64(g.DataBlocks) * int64(g.BlockSize), block: int64(g.BlockSize)}, nil
}

// btrfsDevice is struct btrfs_ioctl_dev_info_args of the kernel's btrfs.h.
type btrfsDevice struct {
	ID         uint64
	UUID       [16]byte
	_          uint64
	TotalBytes uint64
	_          [4056]byte
}

// btrfsSize asks the mounted file system for its part on this device; which
// that is, the superblock says.
func btrfsSize(device *device, mountPoint string) (sizes, error) {
	const superblock, sectorSize, deviceID, deviceUUID = 64 << 10, 0x90, 0xc9, 0x10b
	b := make([]byte, 4096)
	if _, err := device.ReadAt(b, superblock); err != nil {
		return sizes{}, err
	}
	const getDevice = 0xd000941e // BTRFS_IOC_DEV_INFO
	info := btrfsDevice{ID: binary.LittleEndian.Uint64(b[deviceID:])}
	copy(info.UUID[:], b[deviceUUID:]) // ENODEV where mountPoint shows another file system
	id := info.ID
	if _, err := askMounted(mountPoint, getDevice, unsafe.Pointer(&info)); err != nil {
		return sizes{}, err
	}
	return sizes{filesystem: int64(info.TotalBytes), block: int64(binary.LittleEndian.Uint32(b[sectorSize:])), id: id}, nil
}

// askMounted makes an ioctl(2) that fills what answer points to, and returns
// the device number of the file system that was asked.
func askMounted(mountPoint string, request uint, answer unsafe.Pointer) (number uint64, err error) {
	f, err := os.Open(mountPoint)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), uintptr(answer))
	if errno != 0 {
		return 0, &os.PathError{Op: "ioctl", Path: mountPoint, Err: errno}
	}
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	return st.Dev, err
}
