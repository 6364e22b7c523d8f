package treewalk

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// Info is what is known of a file. Mode, with the type as stat(2) has it, GID
// and Links are those of the inode, Blocks its space in units of 512 bytes.
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

// Stat describes an entry of an open directory, or the open file itself for an
// empty name. It neither follows a link nor triggers an automount.
func (t *Tree) Stat(dirfd int, name string) (Info, error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	if t.options.WithoutMountIDs {
		return statByStat(dirfd, name, flags)
	}
	const mask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_NLINK | unix.STATX_GID | unix.STATX_INO | unix.STATX_BLOCKS | unix.STATX_MNT_ID
	sync := unix.AT_STATX_SYNC_AS_STAT
	if t.options.CachedAttributes {
		sync = unix.AT_STATX_DONT_SYNC
	}
	var st unix.Statx_t
	err := eintr.Do(func() error { return unix.Statx(dirfd, name, flags|sync, mask, &st) })
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // EPERM: an older container runtime's seccomp filter
		return statByStat(dirfd, name, flags)
	}
	if err != nil {
		return Info{}, err
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

// statByStat is for kernels without statx.
func statByStat(dirfd int, name string, flags int) (Info, error) {
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Fstatat(dirfd, name, &st, flags) }); err != nil {
		return Info{}, err
	}
	return Info{Mode: st.Mode, GID: st.Gid, Links: uint32(st.Nlink), Blocks: uint64(st.Blocks), Dev: uint64(st.Dev), Ino: st.Ino}, nil
}

// Fixed reports whether an open file is immutable or may only be appended to,
// as far as its file system tells.
func Fixed(fd int) bool {
	var st unix.Statx_t
	err := eintr.Do(func() error { return unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st) })
	return err == nil && st.Attributes&(unix.STATX_ATTR_IMMUTABLE|unix.STATX_ATTR_APPEND) != 0
}
