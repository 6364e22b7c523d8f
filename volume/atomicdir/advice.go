//go:build linux || darwin || freebsd || netbsd || openbsd

package atomicdir

import (
	"errors"

	"golang.org/x/sys/unix"
)

func (e *Error) advice() string {
	switch {
	case errors.Is(e.Err, unix.ENOSPC), errors.Is(e.Err, unix.EDQUOT):
		return "its file system is full: free space or raise the volume's size limit (an update needs room for three versions)"
	case errors.Is(e.Err, unix.EROFS):
		return "its file system is read-only: see the kernel log"
	case errors.Is(e.Err, unix.EACCES), errors.Is(e.Err, unix.EPERM):
		return "the agent's user may not write there, or not set that owner"
	}
	return ""
}
