package table

import (
	"encoding/hex"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// kernelUUID asks the kernel for a file system's UUID. It is empty where there is
// none, or the kernel does not tell.
func kernelUUID(dir *os.File, fstype string) string {
	// A descriptor with O_PATH takes no ioctl(2).
	fd, err := eintr.Get(func() (int, error) {
		return unix.Openat(int(dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
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
