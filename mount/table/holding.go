package table

import (
	"os"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mounttable"
)

// holder is implemented by tables that are not the kernel's, whose mounts
// descriptors know nothing of.
type holder interface {
	Holding(fd int) (mount.Entry, error)
}

// Holding returns the mount of an open file, even if the file's name leads
// elsewhere by now. It reads the table and sends no request to the file system.
// It is an error if the mount is not in the table because it was detached. If
// several mounts of a fake show the same directory, it is the newest of
// them.
func Holding(t mount.Table, f *os.File) (mount.Entry, error) {
	connection, err := f.SyscallConn()
	if err != nil {
		return mount.Entry{}, err
	}
	var entry mount.Entry
	var failed error
	err = connection.Control(func(fd uintptr) { entry, failed = holdingDescriptor(t, int(fd)) })
	if err != nil {
		return mount.Entry{}, err
	}
	return entry, failed
}

func holdingDescriptor(t mount.Table, fd int) (mount.Entry, error) {
	if h, ok := t.(holder); ok {
		return h.Holding(fd)
	}
	id, err := mounttable.MountIDOf(fd)
	if err != nil {
		return mount.Entry{}, err
	}
	return mounttable.MountWithID(t, id)
}
