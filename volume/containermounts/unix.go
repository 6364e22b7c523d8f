//go:build unix && !linux

package containermounts

import (
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// openPlace opens a directory or regular file, and waits for no writer of a FIFO.
func openPlace(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
}

// identifyAt identifies the file at a path, which it does not open.
func identifyAt(path string) (fileIdentity, error) {
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Stat(path, &st) }); err != nil {
		return fileIdentity{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return identityOf(&st), nil
}

// nameOf looks the name of an open file up anew, since its descriptor does not tell it.
// It may lead elsewhere by now: [checkName] compares the file.
func nameOf(file *os.File) (string, error) { return filepath.EvalSymlinks(file.Name()) }
