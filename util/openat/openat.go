//go:build unix

// Package openat opens what an open directory has, and never what a link there leads to, save
// where a function says so.
//
// Like every package below util, it carries no promise of compatibility.
package openat

import (
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// File opens what has a name in a directory (nil: the working directory) by openat(2), with
// O_NOFOLLOW and O_CLOEXEC: a link is unix.ELOOP, or unix.ENOTDIR with O_DIRECTORY. Its path is the
// directory's and the name. An error is an *[fs.PathError].
func File(parent *os.File, name string, flags int, perm fs.FileMode) (*os.File, error) {
	at, path := unix.AT_FDCWD, name
	if parent != nil {
		at, path = int(parent.Fd()), filepath.Join(parent.Name(), name)
	}
	fd, err := eintr.Get(func() (int, error) {
		return unix.Openat(at, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(perm.Perm()))
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Followed opens the directory at a path for reading, and follows links on the way and at its
// end. Unlike with [os.Open], Go's poller is not asked whether it watches directories. An error
// is an *[fs.PathError].
func Followed(path string) (*os.File, error) {
	fd, err := eintr.Get(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Dir is [File] for a directory that is to be read. "." opens one again that was opened otherwise,
// such as with O_PATH.
func Dir(parent *os.File, name string) (*os.File, error) {
	return File(parent, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}
