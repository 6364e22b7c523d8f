//go:build unix

package subpath

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// byName opens for reading, with POSIX' calls alone: the opener of systems without O_PATH.
// Links are not opened, but read by their names.
type byName struct{}

// errNeedsPathOnly says that opening a file would act on it: on a device, or on a process
// that waits at a FIFO. A socket cannot be opened at all.
var errNeedsPathOnly = fmt.Errorf("it is neither a directory nor a regular file, which only Linux can open unread: %w", errors.ErrUnsupported)

func (byName) open(dir int, name string) (entry, error) {
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) }); err != nil {
		return entry{}, err
	}
	flags := 0
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return entry{fd: -1, link: true}, nil
	case unix.S_IFDIR:
		flags = unix.O_DIRECTORY
	case unix.S_IFREG:
	default:
		return entry{}, errNeedsPathOnly
	}
	fd, err := eintr.Get(func() (int, error) {
		return unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC|flags, 0)
	})
	if err != nil {
		return entry{}, orChanged(dir, name, st, err)
	}
	is, err := stat(fd)
	if err == nil && is.Mode&unix.S_IFMT != st.Mode&unix.S_IFMT {
		err = errChanged
	}
	if err != nil {
		unix.Close(fd)
		return entry{}, err
	}
	return entry{fd: fd, dir: isDir(is)}, nil
}

// orChanged tells a refusal from a file that was exchanged since it was opened. Systems
// have different errors for a link that must not be followed.
func orChanged(dir int, name string, was unix.Stat_t, refusal error) error {
	var st unix.Stat_t
	err := eintr.Do(func() error { return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err == nil && st.Dev == was.Dev && st.Ino == was.Ino && !refusesLink(refusal) {
		return refusal
	}
	return errChanged
}

// refusesLink: a directory or regular file is never refused so.
func refusesLink(err error) bool {
	return errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EMLINK) || errors.Is(err, unix.ENOTDIR)
}

func (byName) target(at place, dir int, name string, _ entry) (target string, magic bool, err error) {
	target, err = readLink(dir, name)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT): // no link any more
		return "", false, errChanged
	case err != nil:
		return "", false, at.failed("readlinkat", err)
	}
	return target, false, nil
}

// readLink reads a link, by its name in dir or, with an empty name on Linux, an open one.
func readLink(dir int, name string) (string, error) {
	buffer := make([]byte, maxPath)
	n, err := eintr.Get(func() (int, error) { return unix.Readlinkat(dir, name, buffer) })
	if err != nil {
		return "", err
	}
	return string(buffer[:n]), nil
}
