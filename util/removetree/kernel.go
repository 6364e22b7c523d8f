package removetree

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// kernel says which of the newer system calls to use. Where the kernel lacks
// one, the older way is taken by itself; a false field forces that in tests.
type kernel struct {
	// openat2 (Linux 5.6) refuses to cross a mount while it opens, before a
	// dead server is asked anything.
	openat2 bool
	// mountID (statx, Linux 5.8) tells bind mounts of one file system apart.
	// With neither, only mounts of another file system are noticed, as in
	// gVisor, whose bind mounts differ in st_dev.
	mountID bool
	// unlinkat takes the place of that call in tests, unless nil.
	unlinkat func(dirfd int, name string, flags int) error
}

func (k kernel) remove(dirfd int, name string, flags int) error {
	if k.unlinkat != nil {
		return k.unlinkat(dirfd, name, flags)
	}
	return unix.Unlinkat(dirfd, name, flags)
}

// identity is where a directory is and which one it is.
type identity struct {
	mount, dev, ino uint64
}

func (i identity) sameMount(other identity) bool {
	return i.mount == other.mount && i.dev == other.dev
}

func (k kernel) identify(fd int) (identity, error) {
	if k.mountID {
		var st unix.Statx_t
		err := eintr.Do(func() error {
			return unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_MNT_ID, &st)
		})
		if err == nil {
			id := identity{dev: unix.Mkdev(st.Dev_major, st.Dev_minor), ino: st.Ino}
			if st.Mask&unix.STATX_MNT_ID != 0 {
				id.mount = st.Mnt_id
			}
			return id, nil
		}
		if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) { // EPERM: an older container runtime's seccomp filter
			return identity{}, err
		}
	}
	var st unix.Stat_t
	err := eintr.Do(func() error { return unix.Fstat(fd, &st) })
	return identity{dev: uint64(st.Dev), ino: st.Ino}, err
}

// openDir opens a directory for reading. A link in its place is ENOTDIR or
// ELOOP; a mount is EXDEV with openat2 and success without.
func (k kernel) openDir(dirfd int, name string) (int, error) {
	return k.open(dirfd, name, unix.O_RDONLY)
}

func (k kernel) open(dirfd int, name string, flags int) (int, error) {
	flags |= unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if k.openat2 {
		how := &unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS}
		fd, err := eintr.Get(func() (int, error) { return unix.Openat2(dirfd, name, how) })
		if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
	return eintr.Get(func() (int, error) { return unix.Openat(dirfd, name, flags, 0) })
}

// mayBeMount reports whether an entry of any kind is a mount point, and true
// where that cannot be told.
func (k kernel) mayBeMount(dirfd int, name string, parent identity) bool {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if k.openat2 {
		how := &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_BENEATH}
		if fd, err := eintr.Get(func() (int, error) { return unix.Openat2(dirfd, name, how) }); err == nil {
			unix.Close(fd)
			return false
		}
	}
	fd, err := eintr.Get(func() (int, error) { return unix.Openat(dirfd, name, flags, 0) })
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	id, err := k.identify(fd)
	return err != nil || id.mount == 0 || !id.sameMount(parent)
}

// forceOpenDir opens a directory that lacks the permission to read it, by
// granting that to its owner. It never does so across a mount, which is EXDEV.
func (k kernel) forceOpenDir(dirfd int, name string, parent identity) (int, error) {
	fd, err := k.open(dirfd, name, unix.O_PATH)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	id, err := k.identify(fd)
	if err != nil {
		return -1, err
	}
	if !id.sameMount(parent) {
		return -1, unix.EXDEV
	}
	if err := chmodPath(fd, 0o700); err != nil {
		return -1, err
	}
	return k.openDir(fd, ".")
}

// chmodPath is fchmod(2) for an O_PATH descriptor.
func chmodPath(fd int, mode uint32) error {
	err := unix.Fchmodat(fd, "", mode, unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // before Linux 6.6
		return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode)
	}
	return err
}
