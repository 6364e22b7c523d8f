package podmount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// MakePoint makes an empty directory or file to mount on, and its missing
// parents with mode 0750. Where there is anything, the error matches
// [fs.ErrExist].
func MakePoint(path string, dir bool) error {
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return err
	}
	if dir {
		return os.Mkdir(path, dirMode)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC, 0o640)
	if err != nil {
		return err
	}
	return file.Close()
}

// RemovePoint removes an empty directory or file; a missing one is success.
// Anything else stays, and is an error, which for a directory is a
// *[NotEmptyError].
func RemovePoint(path string) error {
	err := RemoveDir(path)
	if !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Size() > 0:
		return fmt.Errorf("nothing is mounted at %s any more, but it is no empty file; nothing was deleted: find out who put it there: %w", path, fs.ErrExist)
	}
	return Unlink(path)
}

// Unlink removes a name; a missing one is success.
func Unlink(path string) error {
	err := eintr.Do(func() error { return unix.Unlink(path) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "unlink", Path: path, Err: err}
	}
	return nil
}
