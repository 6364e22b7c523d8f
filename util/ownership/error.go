package ownership

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

const (
	opChown = "chown"
	opChmod = "chmod"
)

// Error says that a file could not be given to a group.
type Error struct {
	// Op is "chown" or "chmod".
	Op string
	// Path is the file.
	Path string
	// GID is the group.
	GID uint32
	// Err is the system call's error.
	Err error
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s %s for group %d: %v", e.Op, e.Path, e.GID, e.Err)
	if advice := e.Advice(); advice != "" {
		text += "; " + advice
	}
	return text
}

// Unwrap returns the system call's error.
func (e *Error) Unwrap() error { return e.Err }

// Advice says what to do about it; empty where that is not known.
func (e *Error) Advice() string {
	switch {
	case e.Op == opChown && (errors.Is(e.Err, unix.EINVAL) || errors.Is(e.Err, unix.EOVERFLOW)):
		return fmt.Sprintf("group id %d is not mapped in this user namespace (/proc/self/gid_map); map it with newgidmap, or run as root of the machine", e.GID)
	case errors.Is(e.Err, unix.EPERM), errors.Is(e.Err, unix.EACCES):
		return fmt.Sprintf("this process may not change the file for group id %d: run as root, or use a group of this user for its own files; in a user namespace the ids of the file must be mapped (/proc/self/uid_map)", e.GID)
	case errors.Is(e.Err, unix.EROFS):
		return "the file system is read-only; mount it writable, or declare the volume read-only so that its files are left as they are"
	case errors.Is(e.Err, unix.EDQUOT):
		return fmt.Sprintf("the disk quota of group id %d is used up; raise it", e.GID)
	case errors.Is(e.Err, unix.ENOENT):
		return "/proc is needed to change modes on kernels before 6.6; mount it"
	}
	return ""
}

// explain makes an *Error of the failure of a change.
func (g Group) explain(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok && (e.Op == opChown || e.Op == opChmod) {
		return &Error{Op: e.Op, Path: e.Path, GID: g.ID, Err: e.Err}
	}
	return err
}
