package format

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// The locks that users of this package hold on a device node: an exclusive one
// to claim, format or check the device, a shared one to look at it and to mount
// it. They belong to the open file, so a mkfs that inherits it keeps it. They
// are not flock(2), which udev and some mkfs take themselves.

var errWriteProtected = errors.New("the device is write-protected")

// lockExclusively takes the exclusive lock. The error is EAGAIN where another
// has a lock, errWriteProtected where nothing can be written, and EBUSY where
// the kernel refuses all writes to a mounted device.
func lockExclusively(n node) (*os.File, error) {
	f, err := n.open(unix.O_RDWR)
	if err != nil {
		return nil, err
	}
	if readOnly, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKROGET); err == nil && readOnly != 0 {
		f.Close()
		return nil, errWriteProtected
	}
	return lock(f, unix.F_WRLCK)
}

// lockShared takes the shared lock. The error is EAGAIN where another has the
// exclusive one.
func lockShared(n node) (*os.File, error) {
	f, err := n.open(unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return lock(f, unix.F_RDLCK)
}

// share exchanges the exclusive lock, whose file is closed, for the shared one,
// without a moment in between for another process. A device open for writing
// cannot be mounted on some kernels.
func share(n node, exclusive *os.File) (*os.File, error) {
	defer release(exclusive)
	if _, err := lock(exclusive, unix.F_RDLCK); err != nil {
		return nil, err
	}
	return lockShared(n)
}

// release gives up a lock, whose program has ended, and closes its file. A child that has not
// yet started its program has the file, too, and would keep the lock for that moment.
func release(f *os.File) {
	_ = eintr.Do(func() error { return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK}) })
	f.Close()
}

// lock takes a lock on f, or exchanges the one it has. It closes f if it fails.
func lock(f *os.File, kind int16) (*os.File, error) {
	if err := eintr.Do(func() error { return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind}) }); err != nil {
		f.Close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	return f, nil
}
