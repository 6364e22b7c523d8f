package mount

import (
	"os"
	"strconv"
)

// holder is implemented by tables that are not the kernel's, whose mounts
// descriptors know nothing of.
type holder interface {
	holding(fd int) (Entry, error)
}

// Holding returns the mount of an open file, even if the file's name leads
// elsewhere by now. It reads the table and sends no request to the file system.
// It is an error if the mount is not in the table because it was detached. If
// several mounts of a [FakeMounter] show the same directory, it is the newest of
// them.
func Holding(t Table, f *os.File) (Entry, error) {
	connection, err := f.SyscallConn()
	if err != nil {
		return Entry{}, err
	}
	var entry Entry
	var failed error
	err = connection.Control(func(fd uintptr) { entry, failed = holdingDescriptor(t, int(fd)) })
	if err != nil {
		return Entry{}, err
	}
	return entry, failed
}

func holdingDescriptor(t Table, fd int) (Entry, error) {
	if h, ok := t.(holder); ok {
		return h.holding(fd)
	}
	id, err := mountIDOf(fd)
	if err != nil {
		return Entry{}, err
	}
	return mountWithID(t, id)
}

func (t fakeTable) holding(fd int) (Entry, error) {
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return Entry{}, err
	}
	t.fake.mu.Lock()
	defer t.fake.mu.Unlock()
	at, ok := t.fake.shownAt(real)
	if !ok {
		if at, err = t.fake.walk(real, true); err != nil {
			return Entry{}, err
		}
	}
	return at.mount.entry(), nil
}
