package sharedirs

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/justmade"
)

func openat(dir *os.File, name string, flags int) (int, error) {
	defer runtime.KeepAlive(dir)
	return eintr.Get(func() (int, error) { return unix.Openat(int(dir.Fd()), name, flags|unix.O_CLOEXEC, 0) })
}

// openDir opens a directory in another one, never through a link and never across
// a mount. flags is O_RDONLY, or O_PATH for an unreadable one. The error is an
// *[Error], with [ErrOccupied] for anything but a directory of this file system.
func (k kernel) openDir(dir *os.File, name string, flags int) (*os.File, error) {
	flags |= unix.O_DIRECTORY | unix.O_NOFOLLOW
	path := filepath.Join(dir.Name(), name)
	fd, err := k.openBelow(dir, name, flags)
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, &Error{Cause: ErrOccupied, Path: path, Reason: "something else than a directory is there; links are not followed"}
	case errors.Is(err, unix.EXDEV):
		return nil, &Error{Cause: ErrOccupied, Path: path, Reason: "another file system is mounted there"}
	case err != nil:
		return nil, failed("open", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// kernel says what of the kernel's to use; false forces the older way.
type kernel struct{ openat2, noReplace bool }

func (k kernel) openBelow(dir *os.File, name string, flags int) (int, error) {
	if k.openat2 {
		how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH}
		defer runtime.KeepAlive(dir)
		fd, err := eintr.Get(func() (int, error) { return unix.Openat2(int(dir.Fd()), name, how) })
		if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
	fd, err := openat(dir, name, flags)
	if err != nil {
		return -1, err
	}
	if err := sameMount(dir, fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// sameMount is EXDEV if fd is in another mount or file system than dir.
func sameMount(dir *os.File, fd int) error {
	above, err := mountOf(int(dir.Fd()))
	if err != nil {
		return err
	}
	here, err := mountOf(fd)
	if err != nil {
		return err
	}
	if above != here {
		return unix.EXDEV
	}
	return nil
}

type mounted struct{ dev, mount uint64 }

func mountOf(fd int) (mounted, error) {
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return mounted{}, err
	}
	m := mounted{dev: uint64(st.Dev)}
	var stx unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &stx); err == nil && stx.Mask&unix.STATX_MNT_ID != 0 {
		m.mount = stx.Mnt_id
	}
	return m, nil
}

// look returns which directory has this name in dir; that there is none is
// ENOENT.
func (k kernel) look(dir *os.File, name string) (identity, error) {
	f, err := k.openDir(dir, name, unix.O_PATH)
	if err != nil {
		return identity{}, err
	}
	defer f.Close()
	id, err := identify(int(f.Fd()))
	if err != nil {
		return identity{}, failed("statx", f.Name(), err)
	}
	return id, nil
}

// rename moves a directory, and replaces nothing: an existing target is EEXIST or
// ENOTEMPTY. Where the file system cannot be told so, as NFS, it is looked at
// first; an empty directory that appears after that is replaced.
func (k kernel) rename(from *os.File, name string, to *os.File, newName string) error {
	defer runtime.KeepAlive(from)
	defer runtime.KeepAlive(to)
	a, b := int(from.Fd()), int(to.Fd())
	err := error(unix.EINVAL)
	if k.noReplace {
		err = eintr.Do(func() error { return unix.Renameat2(a, name, b, newName, unix.RENAME_NOREPLACE) })
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		var st unix.Stat_t
		err = eintr.Do(func() error { return unix.Fstatat(b, newName, &st, unix.AT_SYMLINK_NOFOLLOW) })
		switch {
		case err == nil:
			err = unix.EEXIST
		case errors.Is(err, unix.ENOENT):
			err = eintr.Do(func() error { return unix.Renameat(a, name, b, newName) })
		}
	}
	return failed("rename", filepath.Join(to.Name(), newName), err)
}

func mkdir(dir *os.File, name string, mode uint32) error {
	defer runtime.KeepAlive(dir)
	err := eintr.Do(func() error { return unix.Mkdirat(int(dir.Fd()), name, mode) })
	return failed("mkdir", filepath.Join(dir.Name(), name), err)
}

// isTaken reports whether a rename failed since something is in the way.
func isTaken(err error) bool {
	return errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR)
}

// isGone reports whether a rename failed since its source, or the directory of
// its target, is no longer there.
func isGone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) }

// rmdir removes an empty directory, and never anything else.
func rmdir(dir *os.File, name string) error {
	defer runtime.KeepAlive(dir)
	err := eintr.Do(func() error { return unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR) })
	return failed("rmdir", filepath.Join(dir.Name(), name), err)
}

// rmdirIfThere is success if there is no such directory.
func rmdirIfThere(dir *os.File, name string) error {
	if err := rmdir(dir, name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// trust refuses a bookkeeping that another user has made, maybe with forged
// marks, and returns its owner. Any user who may write in the base can put one
// there.
func (b *base) trust(top *os.File) (owner uint32, err error) {
	st, err := stat(top)
	if err != nil {
		return 0, err
	}
	ours := b.agent
	if st.Uid != ours {
		if ours, err = justmade.UserIn(int(top.Fd())); err != nil {
			return 0, failed("make a file in", top.Name(), err)
		}
	}
	return ours, checkOwner(top, ours)
}

// checkOwner refuses a directory that is not this user's, or in which others
// can write.
func checkOwner(dir *os.File, ours uint32) error {
	st, err := stat(dir)
	switch {
	case err != nil:
		return err
	case st.Uid != ours:
		return &Error{Cause: ErrForeign, Path: dir.Name(), ours: ours,
			Reason: fmt.Sprintf("belongs to user %d, while what this node makes there belongs to user %d", st.Uid, ours)}
	case st.Mode&0o022 != 0:
		return &Error{Cause: ErrExposed, Path: dir.Name(), Reason: fmt.Sprintf("has the mode %#o: others could write in it", st.Mode&0o7777)}
	}
	return nil
}

func stat(dir *os.File) (st unix.Stat_t, err error) {
	err = eintr.Do(func() error { return unix.Fstat(int(dir.Fd()), &st) })
	return st, failed("stat", dir.Name(), err)
}

// Medium is where a base lies. It changes nothing but the advice of errors.
type Medium int

const (
	// Share is a share of an NFS server.
	Share Medium = iota
	// Disk is a directory of this node.
	Disk
)

// named has all errors of this package in err say what suits the medium.
func (m Medium) named(err error) error {
	each(err, func(e *Error) { e.On = m })
	return err
}

// each calls f with all errors of this package in err.
func each(err error, f func(*Error)) {
	if e, ok := errors.AsType[*Error](err); ok && error(e) == err {
		f(e)
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		each(e.Unwrap(), f)
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			each(one, f)
		}
	}
}

// identity tells a directory from all others of its file system.
type identity struct {
	Inode uint64 `json:"inode"`
	// Birth is when the inode was made, in nanoseconds; 0: not known, as over
	// NFS with older kernels.
	Birth int64 `json:"birth,omitempty"`
	// Handle is the file's handle (name_to_handle_at(2)), which has the inode's
	// generation; over NFS it is the server's. Empty: not known.
	Handle string `json:"handle,omitempty"`
}

// same reports whether both are the same directory, as far as both know.
func (i identity) same(other identity) bool {
	return i.Inode == other.Inode &&
		(i.Birth == 0 || other.Birth == 0 || i.Birth == other.Birth) &&
		(i.Handle == "" || other.Handle == "" || i.Handle == other.Handle)
}

// key is another one for each directory.
func (i identity) key() string { return fmt.Sprintf("%d-%d-%s", i.Inode, i.Birth, i.Handle) }

func identify(fd int) (identity, error) {
	var st unix.Statx_t
	err := eintr.Do(func() error {
		return unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_INO|unix.STATX_BTIME, &st)
	})
	var id identity
	switch {
	case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM): // an older container runtime's filter
		var st unix.Stat_t
		if err := eintr.Do(func() error { return unix.Fstat(fd, &st) }); err != nil {
			return identity{}, err
		}
		id.Inode = st.Ino
	case err != nil:
		return identity{}, err
	default:
		id.Inode = st.Ino
		if st.Mask&unix.STATX_BTIME != 0 {
			id.Birth = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
		}
	}
	// Not every file system has handles, and not every process may ask.
	if h, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH); err == nil {
		id.Handle = fmt.Sprintf("%d:%s", h.Type(), hex.EncodeToString(h.Bytes()))
	}
	return id, nil
}
