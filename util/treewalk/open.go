package treewalk

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// OpenPath opens an entry of an open directory without access to it (O_PATH),
// a link itself, a device or pipe without waking its driver, and describes what
// it has opened. Where something is mounted the error is EXDEV.
func (t *Tree) OpenPath(dirfd int, name string) (int, Info, error) {
	return t.open(dirfd, name, unix.O_PATH)
}

// openDir opens a directory for reading; a mount is EXDEV.
func (t *Tree) openDir(dirfd int, name string) (int, Info, error) {
	return t.open(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

func (t *Tree) open(dirfd int, name string, flags int) (int, Info, error) {
	flags |= unix.O_NOFOLLOW | unix.O_CLOEXEC
	if !t.noOpenat2.Load() {
		how := unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS}
		fd, err := eintr.Get(func() (int, error) { return unix.Openat2(dirfd, name, &how) })
		switch {
		case err == nil:
			return t.opened(fd)
		case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM): // or an older container runtime's seccomp filter
			t.noOpenat2.Store(true)
		case !errors.Is(err, unix.EAGAIN): // which is: a rename nearby, try again
			return -1, Info{}, err
		}
	}
	return t.openOlder(dirfd, name, flags)
}

// opened describes what was opened with RESOLVE_NO_XDEV, and so needs no look
// at its mount: the cheaper fstat(2) will do.
func (t *Tree) opened(fd int) (int, Info, error) {
	info, err := statByStat(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		unix.Close(fd)
		return -1, Info{}, err
	}
	info.mount = t.root.mount
	return fd, info, nil
}

// openOlder is open on kernels without openat2(2): it looks before, so as not
// to trigger an automount, and afterwards, at what it has opened.
func (t *Tree) openOlder(dirfd int, name string, flags int) (int, Info, error) {
	if info, err := t.Stat(dirfd, name); err != nil || !t.Holds(info) {
		return -1, Info{}, orCrossing(err)
	}
	fd, err := eintr.Get(func() (int, error) { return unix.Openat(dirfd, name, flags, 0) })
	if err != nil {
		return -1, Info{}, err
	}
	info, err := t.Stat(fd, "")
	if err != nil || !t.Holds(info) {
		unix.Close(fd)
		return -1, Info{}, orCrossing(err)
	}
	return fd, info, nil
}

func orCrossing(err error) error {
	if err == nil {
		return unix.EXDEV
	}
	return err
}
