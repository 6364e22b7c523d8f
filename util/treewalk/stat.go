package treewalk

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// Info is the known state of a file. Mode, with the type as stat(2) has it, GID
// and Links are the inode's, Blocks its space in units of 512 bytes.
type Info struct {
	Mode, GID, Links uint32
	Blocks           uint64
	Dev, Ino         uint64

	mount uint64 // 0 if not known
}

// IsDir reports whether it is a directory.
func (i Info) IsDir() bool { return i.Mode&unix.S_IFMT == unix.S_IFDIR }

// IsLink reports whether it is a symbolic link.
func (i Info) IsLink() bool { return i.Mode&unix.S_IFMT == unix.S_IFLNK }

func (i Info) sameFile(other Info) bool { return i.Dev == other.Dev && i.Ino == other.Ino }

// Holds reports whether a file is on the mount of the tree's root, or, where
// mount ids are not known, on its file system.
func (t *Tree) Holds(i Info) bool {
	if i.mount != 0 && t.root.mount != 0 {
		return i.mount == t.root.mount
	}
	return i.Dev == t.root.Dev
}

// Stat describes an entry of an open directory. It neither follows a link nor
// triggers an automount.
func (t *Tree) Stat(dirfd int, name Name) (Info, error) { return t.stat(dirfd, name, 0) }

// StatOpen describes an open file.
func (t *Tree) StatOpen(fd int) (Info, error) { return t.stat(fd, Name{0}, unix.AT_EMPTY_PATH) }

func (t *Tree) stat(dirfd int, name Name, flags int) (Info, error) {
	flags |= unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if t.options.WithoutMountIDs {
		return statByStat(dirfd, name, flags)
	}
	const mask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_NLINK | unix.STATX_GID | unix.STATX_INO | unix.STATX_BLOCKS | unix.STATX_MNT_ID
	sync := unix.AT_STATX_SYNC_AS_STAT
	if t.options.CachedAttributes {
		sync = unix.AT_STATX_DONT_SYNC
	}
	var st unix.Statx_t
	switch errno := statx(dirfd, name, flags|sync, mask, &st); errno {
	case 0:
	case unix.ENOSYS, unix.EPERM: // EPERM: an older container runtime's seccomp filter
		return statByStat(dirfd, name, flags)
	default:
		return Info{}, errno
	}
	i := Info{
		Mode: uint32(st.Mode), GID: st.Gid, Links: st.Nlink, Blocks: st.Blocks,
		Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino,
	}
	if st.Mask&unix.STATX_MNT_ID != 0 {
		i.mount = st.Mnt_id
	}
	return i, nil
}

// statx is [unix.Statx] for a [Name].
func statx(dirfd int, name Name, flags, mask int, st *unix.Statx_t) unix.Errno {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(dirfd), uintptr(unsafe.Pointer(unsafe.SliceData(name))),
			uintptr(flags), uintptr(mask), uintptr(unsafe.Pointer(st)), 0)
		if errno != unix.EINTR {
			return errno
		}
	}
}

// statByStat is for kernels without statx.
func statByStat(dirfd int, name Name, flags int) (Info, error) {
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Fstatat(dirfd, name.String(), &st, flags) }); err != nil {
		return Info{}, err
	}
	return infoOf(&st), nil
}

func infoOf(st *unix.Stat_t) Info {
	return Info{Mode: st.Mode, GID: st.Gid, Links: uint32(st.Nlink), Blocks: uint64(st.Blocks), Dev: uint64(st.Dev), Ino: st.Ino}
}

// Fixed reports whether an open file is immutable or may only be appended to,
// as far as its file system tells.
func Fixed(fd int) bool {
	var st unix.Statx_t
	err := eintr.Do(func() error { return unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st) })
	return err == nil && st.Attributes&(unix.STATX_ATTR_IMMUTABLE|unix.STATX_ATTR_APPEND) != 0
}
