//go:build unix

// Package filelock locks files and directories as flock(2) does: a lock is held against every other
// opening, of the same process too, until it is given back or the process ends.
//
// Like every package below util, it carries no promise of compatibility.
package filelock

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// Open opens and locks what has a path. Errors are those of [Lock], and of [os.Open].
func Open(path string, how int) (*os.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := Lock(file, how); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// Lock locks an open file or directory: how is unix.LOCK_EX or unix.LOCK_SH, with unix.LOCK_NB where
// it is not to wait for others; then the error matches unix.EWOULDBLOCK while another has it.
func Lock(file *os.File, how int) error {
	if err := eintr.Do(func() error { return unix.Flock(int(file.Fd()), how) }); err != nil {
		return &fs.PathError{Op: "lock", Path: file.Name(), Err: err}
	}
	return nil
}

// LockLinked is [Lock] for what others remove while they have it locked. The error matches
// [fs.ErrNotExist] where that has happened.
func LockLinked(file *os.File, how int) error {
	if err := Lock(file, how); err != nil {
		return err
	}
	info, err := file.Stat()
	if err == nil && info.Sys().(*syscall.Stat_t).Nlink == 0 {
		err = &fs.PathError{Op: "lock", Path: file.Name(), Err: fs.ErrNotExist}
	}
	return err
}

// Unlock gives a lock back.
func Unlock(file *os.File) { _ = Lock(file, unix.LOCK_UN) }

// Close gives a lock back and closes its file. To close that is not enough: a child that has not
// yet started its program has it, too, and would keep the lock for that moment.
func Close(file *os.File) error {
	Unlock(file)
	return file.Close()
}
