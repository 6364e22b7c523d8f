package durable

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
)

var errNotAFile = errors.New("this is not the path of a file")

// Error is a failed write or removal. It never shows contents.
type Error struct {
	// Op is "write", "create", "remove" or "sweep".
	Op string
	// Path is the file that was to change, or the directory to be swept.
	Path string
	// Replaced says that the change can be seen, but was not confirmed by the
	// disk: a crash may undo it.
	Replaced bool
	// Err is the reason, in general a [syscall.Errno].
	Err error
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s %s durably: %v", e.Op, e.Path, e.Err)
	if e.Replaced {
		text += " (done, but a crash may undo it)"
	}
	if advice := e.Advice(); advice != "" {
		text += "; " + advice
	}
	return text
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// Advice says what to check, or is empty where nothing useful can be said.
func (e *Error) Advice() string {
	dir := filepath.Dir(e.Path)
	for _, a := range []struct {
		err  error
		text string
	}{
		{syscall.ENOSPC, "the file system is full or out of inodes: free some (df and df -i on " + dir + ")"},
		{syscall.EDQUOT, "the disk quota is used up: raise it or free space below " + dir},
		{syscall.EROFS, "the file system is read-only: if it was not mounted so, it met an error; see the kernel log, repair it and remount " + dir},
		{syscall.EIO, "the disk reports errors: see the kernel log and replace it"},
		{syscall.EACCES, "the permissions of " + dir + " or of one of its parents forbid it"},
		{syscall.EPERM, "the owner or an attribute (lsattr) of " + dir + " forbids it"},
		{syscall.ENOENT, "the directory " + dir + " does not exist"},
		{syscall.EEXIST, "an existing file is not replaced"},
		{syscall.EISDIR, e.Path + " is a directory, which is not touched"},
	} {
		if errors.Is(e.Err, a.err) {
			return a.text
		}
	}
	return ""
}
