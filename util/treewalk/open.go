package treewalk

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// OpenPath opens an entry of an open directory without access to it (O_PATH),
// a link itself, a device or pipe without waking its driver, and describes what
// it has opened. Where something is mounted the error is EXDEV.
func (t *Tree) OpenPath(dirfd int, name Name) (int, Info, error) {
	return t.open(dirfd, name, unix.O_PATH)
}

// openDir opens a directory for reading; a mount is EXDEV. It looks before it
// opens, so as not to trigger an automount.
func (t *Tree) openDir(dirfd int, s string) (int, Info, error) {
	name := nameOf(s)
	if info, err := t.Stat(dirfd, name); err != nil || !t.Holds(info) {
		return -1, Info{}, orCrossing(err)
	}
	return t.open(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// openAgain opens a directory that is open. Unlike duplicates, processors do
// not get in each other's way at what they use of these two.
func openAgain(fd int) (int, error) {
	return eintr.Get(func() (int, error) { return unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
}

func (t *Tree) open(dirfd int, name Name, flags int) (int, Info, error) {
	flags |= unix.O_NOFOLLOW | unix.O_CLOEXEC
	if !t.noOpenat2.Load() {
		how := unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS}
		fd, errno := openat2(dirfd, name, &how)
		switch errno {
		case 0:
			return t.openedInside(fd)
		case unix.ENOSYS, unix.EPERM: // or an older container runtime's seccomp filter
			t.noOpenat2.Store(true)
		case unix.EAGAIN: // a rename nearby
		default:
			return -1, Info{}, errno
		}
	}
	fd, err := eintr.Get(func() (int, error) { return unix.Openat(dirfd, name.String(), flags, 0) })
	if err != nil {
		return -1, Info{}, err
	}
	return t.opened(fd)
}

// openedInside describes a file that openat2(2) has opened: it refuses a mount, so
// that the cheaper fstat(2) is enough, which knows none.
func (t *Tree) openedInside(fd int) (int, Info, error) {
	if t.options.CachedAttributes { // fstat may ask the server
		return t.opened(fd)
	}
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Fstat(fd, &st) }); err != nil {
		unix.Close(fd)
		return -1, Info{}, err
	}
	return fd, infoOf(&st), nil
}

// opened describes the opened file, unless that is a mount.
func (t *Tree) opened(fd int) (int, Info, error) {
	info, err := t.StatOpen(fd)
	if err != nil || !t.Holds(info) {
		unix.Close(fd)
		return -1, Info{}, orCrossing(err)
	}
	return fd, info, nil
}

// openat2 is [unix.Openat2] for a [Name].
func openat2(dirfd int, name Name, how *unix.OpenHow) (int, unix.Errno) {
	for {
		fd, _, errno := unix.Syscall6(unix.SYS_OPENAT2, uintptr(dirfd), uintptr(unsafe.Pointer(unsafe.SliceData(name))),
			uintptr(unsafe.Pointer(how)), unsafe.Sizeof(*how), 0, 0)
		if errno != unix.EINTR {
			return int(fd), errno
		}
	}
}

func orCrossing(err error) error {
	if err == nil {
		return unix.EXDEV
	}
	return err
}
