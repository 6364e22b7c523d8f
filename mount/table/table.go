package table

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/mount/internal/statmount"
)

// Tabler is implemented by mounters that keep a table of their own.
type Tabler interface {
	Table() mount.Table
}

// Of returns the table that m acts on.
//
//   - It is m's own if m has a method Table() Table, as in mount/host and
//     mount/fakemount, and in the results of host.Wrap.
//   - Any other mounter must act on this process's mount namespace. Its table keeps
//     nothing open and reads /proc/self/mountinfo for each question. host.Wrap gives it
//     one that is kept in memory.
//
// Of opens nothing. If a table cannot be read, its questions return the error.
func Of(m mount.Interface) mount.Table {
	if t, ok := m.(Tabler); ok {
		return t.Table()
	}
	return mounttable.Uncached{}
}

// Kernel returns a table of this process's mount namespace. It is kept in memory and
// updated before each answer. It holds a descriptor from the first question on, and
// another one from the first change on, which are closed when it is no longer used. Kernel opens nothing; a process without /proc
// gets the error by its first question.
//
// The table is the process's. A thread with another mount namespace or root directory
// (unshare(2), chroot(2)) gets the same answers, slower.
func Kernel() mount.Table { return mounttable.New(statmount.Host{}) }

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

// container is implemented by tables that are not the kernel's, in which the
// kernel cannot follow links.
type container interface {
	Containing(path string) (mount.Entry, error)
}

// Containing returns the mount in which path lies. If path is a mount point, that
// is the mount at path. path must be absolute and must exist. Links in it are
// followed. Containing may block if path leads into a file system that does not
// answer.
func Containing(t mount.Table, path string) (mount.Entry, error) {
	if c, ok := t.(container); ok {
		return c.Containing(path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return mount.Entry{}, err
	}
	for dir := filepath.Clean(real); ; dir = filepath.Dir(dir) {
		e, found, err := t.At(dir)
		if found || err != nil {
			return e, err
		}
		if dir == "/" {
			return mount.Entry{}, fmt.Errorf("the mount table has no mount that contains %s", path)
		}
	}
}
