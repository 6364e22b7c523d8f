package format

import (
	"os"

	"golang.org/x/sys/unix"
)

// device is an open block device.
type device struct {
	*os.File
	size int64 // in bytes
}

// deviceNumber returns the number of the block device at path, links followed.
// Only the device node is looked at.
func deviceNumber(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, &os.PathError{Op: "open", Path: path, Err: unix.ENOTBLK}
	}
	return st.Rdev, nil
}

// openDevice opens a block device for reading. With O_EXCL it fails with EBUSY
// where something on this node has claimed it: a mount, swap, RAID, the device
// mapper, or another O_EXCL. What the kernel had cached of it is dropped, so
// that what is read is what the device has.
func openDevice(path string, flags int) (*device, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		f.Close()
		return nil, &os.PathError{Op: "open", Path: path, Err: unix.ENOTBLK}
	}
	if flags&unix.O_EXCL != 0 {
		// Needs CAP_SYS_ADMIN, as the mount will; without it the cache has to do.
		unix.IoctlSetInt(fd, unix.BLKFLSBUF, 0)
	}
	size, err := f.Seek(0, 2)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &device{f, size}, nil
}
