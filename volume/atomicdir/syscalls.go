//go:build linux || darwin || freebsd || netbsd || openbsd

package atomicdir

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume/fileset"
)

// The os package resolves a path for each call, and registers each file with
// the poller, in vain. Relative to an open directory neither is needed, and
// no other process can redirect a path in between.

func idOf(st *unix.Stat_t) fileID { return fileID{dev: uint64(st.Dev), ino: st.Ino} }

func fstat(fd int, st *unix.Stat_t) error {
	return eintr.Do(func() error { return unix.Fstat(fd, st) })
}

// statAt is of a link itself.
func statAt(dirfd int, name string, st *unix.Stat_t) error {
	return eintr.Do(func() error { return unix.Fstatat(dirfd, name, st, unix.AT_SYMLINK_NOFOLLOW) })
}

func openAt(dirfd int, name string, flags int, mode uint32) (int, error) {
	return eintr.Get(func() (int, error) {
		return unix.Openat(dirfd, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	})
}

func openDirAt(dirfd int, name string) (int, error) {
	return openUnnoticed(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// openUnnoticed opens without setting the time of access, where that is
// allowed: for the owner of a file.
func openUnnoticed(dirfd int, name string, flags int) (int, error) {
	fd, err := openAt(dirfd, name, flags|noAccessTime, 0)
	if errors.Is(err, unix.EPERM) {
		return openAt(dirfd, name, flags, 0)
	}
	return fd, err
}

func readlink(dirfd int, name string) (string, error) {
	var buffer [512]byte // ours are shorter
	n, err := eintr.Get(func() (int, error) { return unix.Readlinkat(dirfd, name, buffer[:]) })
	if err != nil {
		return "", err
	}
	return string(buffer[:n]), nil
}

func symlink(target string, dirfd int, name string) error {
	return eintr.Do(func() error { return unix.Symlinkat(target, dirfd, name) })
}

// unlink removes a file that is no directory. A missing one is success.
func unlink(dirfd int, name string) error {
	err := eintr.Do(func() error { return unix.Unlinkat(dirfd, name, 0) })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// link may be forbidden or not supported.
func link(from, to int, name string) error {
	return eintr.Do(func() error { return unix.Linkat(from, name, to, name, 0) })
}

func rename(dirfd int, from, to string) error {
	return eintr.Do(func() error { return unix.Renameat(dirfd, from, dirfd, to) })
}

// readNames lists an open directory, from its beginning.
func readNames(fd int) ([]string, error) {
	if _, err := unix.Seek(fd, 0, io.SeekStart); err != nil {
		return nil, err
	}
	buffer := make([]byte, 4<<10) // most directories have few names
	var names []string
	for {
		n, err := eintr.Get(func() (int, error) { return unix.ReadDirent(fd, buffer) })
		if err != nil || n == 0 {
			return names, err
		}
		_, _, names = unix.ParseDirent(buffer[:n], -1, names)
	}
}

// makeDir makes a directory of just dirMode and opens it. A failure leaves none. Setgid stays
// as the parent passes it on, so that files below get the volume's group.
func makeDir(dirfd int, name string) (int, error) {
	if err := eintr.Do(func() error { return unix.Mkdirat(dirfd, name, dirMode) }); err != nil {
		return -1, err
	}
	fd, err := openMade(dirfd, name)
	if err != nil {
		return -1, errors.Join(err, removeDir(dirfd, name))
	}
	return fd, nil
}

// openMade opens a new directory and sets its mode: the umask or a default ACL may have taken
// something away, even what its owner needs to open it.
func openMade(dirfd int, name string) (int, error) {
	fd, err := openDirAt(dirfd, name)
	if errors.Is(err, unix.EACCES) {
		var st unix.Stat_t
		if err = statAt(dirfd, name, &st); err == nil {
			err = chmodDir(dirfd, name, madeMode(&st))
		}
		if err == nil {
			fd, err = openDirAt(dirfd, name)
		}
	}
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	err = fstat(fd, &st)
	if err == nil && uint32(st.Mode)&0o777 != dirMode {
		err = eintr.Do(func() error { return unix.Fchmod(fd, madeMode(&st)) })
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func madeMode(st *unix.Stat_t) uint32 { return uint32(st.Mode)&unix.S_ISGID | dirMode }

// makeFile makes a file that does not exist yet.
func makeFile(dirfd int, name string, f *fileset.File) (err error) {
	mode := uint32(f.Mode)
	fd, err := openAt(dirfd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := unix.Close(fd); err == nil && !errors.Is(closeErr, unix.EINTR) {
			err = closeErr
		}
	}()
	for data := f.Data; len(data) > 0; {
		n, err := eintr.Get(func() (int, error) { return unix.Write(fd, data) })
		if err != nil {
			return err
		}
		data = data[n:]
	}
	if f.UID != nil || f.GID != nil {
		uid, gid := ownerOf(f)
		if err := eintr.Do(func() error { return unix.Fchown(fd, uid, gid) }); err != nil {
			return err
		}
	}
	// The umask or a default ACL may have taken something away.
	var st unix.Stat_t
	if err := fstat(fd, &st); err != nil {
		return err
	}
	if uint32(st.Mode)&0o7777 != mode {
		return eintr.Do(func() error { return unix.Fchmod(fd, mode) })
	}
	return nil
}

// ownerOf returns what chown(2) takes: -1 leaves as it is.
func ownerOf(f *fileset.File) (uid, gid int) {
	uid, gid = -1, -1
	if f.UID != nil {
		uid = int(*f.UID)
	}
	if f.GID != nil {
		gid = int(*f.GID)
	}
	return uid, gid
}
