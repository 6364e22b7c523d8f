package format

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// device is an open block device.
type device struct {
	*os.File
	size int64 // in bytes
	node node
}

// node is a block device as it was found under a name, links resolved. A link or
// node that leads elsewhere later is refused, so the device that is formatted is
// the one that was proven blank.
type node struct {
	path   string
	number uint64
}

// nodeAt finds the block device at path. Only the device node is read.
func nodeAt(path string) (node, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return node{}, err
	}
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Stat(resolved, &st) }); err != nil {
		return node{}, &os.PathError{Op: "stat", Path: resolved, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return node{}, &os.PathError{Op: "open", Path: resolved, Err: unix.ENOTBLK}
	}
	return node{resolved, st.Rdev}, nil
}

// open opens the device. The error is ENOTBLK where the path leads to another
// one by now.
func (n node) open(flags int) (*os.File, error) {
	var fd int
	err := eintr.Do(func() (err error) {
		fd, err = unix.Open(n.path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		return err
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: n.path, Err: err}
	}
	f := os.NewFile(uintptr(fd), n.path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != n.number {
		f.Close()
		return nil, &os.PathError{Op: "open", Path: n.path, Err: unix.ENOTBLK}
	}
	return f, nil
}

// openDevice opens a block device for reading. With O_EXCL it fails with EBUSY
// where something on this node has claimed it: a mount, swap, RAID, the device
// mapper, or another O_EXCL. The kernel's cache of it is dropped, so that reads
// come from the device.
func openDevice(n node, flags int) (*device, error) {
	f, err := n.open(unix.O_RDONLY | flags)
	if err != nil {
		return nil, err
	}
	if flags&unix.O_EXCL != 0 {
		// Needs CAP_SYS_ADMIN, as the mount will; without it the cache has to do.
		unix.IoctlSetInt(int(f.Fd()), unix.BLKFLSBUF, 0)
	}
	size, err := f.Seek(0, 2)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &device{f, size, n}, nil
}
