package nfs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// modeBits are those that a directory's mode has.
const modeBits = 0o7777

// makeAttempts bounds how often somebody else may remove what was just made.
const makeAttempts = 3

// pathError says which element of a path could not be made, or is no directory.
type pathError struct {
	element string // from the root
	reason  string
	err     error
}

func (e *pathError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("%q %s", e.element, e.reason)
	}
	return fmt.Sprintf("%q %s: %v", e.element, e.reason, e.err)
}

func (e *pathError) Unwrap() error { return e.err }

// makeBelow makes what is missing of a clean, relative path beneath root with
// this mode, whatever the umask is; a set-group-id bit that a directory inherits
// stays. What exists is left as it is. No link is followed, and no other file
// system entered. It is idempotent, and safe where others make the same. The
// error is a *pathError.
func makeBelow(root *os.File, path string, mode uint32) (err error) {
	defer runtime.KeepAlive(root)
	withoutUmask(func() { err = makeElements(int(root.Fd()), strings.Split(path, "/"), mode) })
	return err
}

// withoutUmask calls f on a thread whose umask is 0, so that what it makes has
// its mode from the beginning: a crash before a chmod would leave another one for
// good. Where a thread may not have a umask of its own, what makes a directory
// corrects its mode.
func withoutUmask(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with this goroutine
		if unix.Unshare(unix.CLONE_FS) == nil {
			unix.Umask(0)
		} else {
			runtime.UnlockOSThread()
		}
		f()
	}()
	<-done
}

func makeElements(root int, elements []string, mode uint32) error {
	top, err := lookAt(root)
	if err != nil {
		return &pathError{".", "cannot be looked at", err}
	}
	dir := root
	for i, name := range elements {
		next, err := makeElement(dir, name, mode, top)
		if dir != root {
			unix.Close(dir)
		}
		if failed, ok := errors.AsType[*pathError](err); ok {
			failed.element = strings.Join(elements[:i+1], "/")
		}
		if err != nil {
			return err
		}
		dir = next
	}
	if dir != root {
		unix.Close(dir)
	}
	return nil
}

// makeElement opens a directory in dir, and makes it first if it is missing.
func makeElement(dir int, name string, mode uint32, top unix.Statx_t) (int, error) {
	for range makeAttempts {
		fd, err := openDirElement(dir, name, top)
		if !errors.Is(err, unix.ENOENT) {
			return fd, err
		}
		switch err := eintr.Do(func() error { return unix.Mkdirat(dir, name, mode&0o1777) }); {
		case errors.Is(err, unix.EEXIST):
			continue // somebody else was faster
		case err != nil:
			return -1, &pathError{reason: "cannot be made", err: err}
		}
		fd, err = openDirElement(dir, name, top)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return -1, err
		}
		if err := setMode(fd, mode); err != nil {
			unix.Close(fd)
			return -1, errors.Join(err, removeMade(dir, name))
		}
		return fd, nil
	}
	return -1, &pathError{reason: "goes away as soon as it is made", err: unix.EAGAIN}
}

// openDirElement opens what must be a directory of the same file system as top, and
// no link.
func openDirElement(dir int, name string, top unix.Statx_t) (int, error) {
	fd, err := eintr.Get(func() (int, error) {
		return unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return -1, &pathError{reason: "cannot be opened", err: err}
	}
	st, err := lookAt(fd)
	if err == nil {
		err = fits(st, top)
	}
	if err != nil {
		unix.Close(fd)
		return -1, &pathError{reason: "cannot be used", err: err}
	}
	return fd, nil
}

var (
	errIsLink     = errors.New("it is a symbolic link, which is not followed")
	errIsNoDir    = errors.New("it is no directory")
	errOtherMount = errors.New("another file system begins there, which is not entered; name a directory of that under makeBelow")
)

func fits(st, top unix.Statx_t) error {
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return errIsLink
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return errIsNoDir
	case st.Dev_major != top.Dev_major || st.Dev_minor != top.Dev_minor || st.Attributes&unix.STATX_ATTR_AUTOMOUNT != 0:
		return errOtherMount
	}
	return nil
}

func lookAt(fd int) (st unix.Statx_t, err error) {
	const flags = unix.AT_EMPTY_PATH | unix.AT_NO_AUTOMOUNT
	err = eintr.Do(func() error { return unix.Statx(fd, "", flags, unix.STATX_TYPE|unix.STATX_MODE, &st) })
	return st, err
}

// setMode corrects the mode of a directory that was just made: mkdir(2) never
// sets the set-group-id bit, and a default ACL or umask takes bits away.
func setMode(fd int, mode uint32) error {
	st, err := lookAt(fd)
	if err != nil {
		return &pathError{reason: "was made, but cannot be looked at", err: err}
	}
	wanted := mode | uint32(st.Mode)&unix.S_ISGID
	if uint32(st.Mode)&modeBits == wanted {
		return nil
	}
	// A descriptor with O_PATH knows no fchmod.
	if err := eintr.Do(func() error { return unix.Fchmodat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), wanted, 0) }); err != nil {
		return &pathError{reason: fmt.Sprintf("was made with mode %04o, which cannot be changed", st.Mode&modeBits), err: err}
	}
	if st, err = lookAt(fd); err == nil && uint32(st.Mode)&modeBits != wanted {
		err = fmt.Errorf("the server makes mode %04o of it: %w", st.Mode&modeBits, unix.EPERM)
	}
	if err != nil {
		return &pathError{reason: "does not get its mode", err: err}
	}
	return nil
}

// removeMade takes back what is not as it should be: the next try would take it
// for somebody's.
func removeMade(dir int, name string) error {
	return eintr.Do(func() error { return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) })
}
