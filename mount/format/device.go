package format

import (
	"errors"
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

var errWriteProtected = errors.New("the device is write-protected")

// lockDevice takes the lock that users of this package hold while they format.
// It belongs to the open file, so a mkfs that inherits it keeps it. It is not
// flock(2), which udev and some mkfs take themselves. The error is EAGAIN where
// another has it, and errWriteProtected where nothing can be written.
func lockDevice(path string) (*os.File, error) {
	f, err := os.OpenFile(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if readOnly, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKROGET); err == nil && readOnly != 0 {
		f.Close()
		return nil, errWriteProtected
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
