package durable

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// InPlace reports whether path still leads to the file or directory that is open:
// another process may have removed it, put another in its place or mounted over
// it. A later open of path then does not find new writes to it. After an error
// neither is known.
func InPlace(open *os.File, path string) (bool, error) {
	own, err := open.Stat()
	if err != nil {
		return false, err
	}
	now, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return false, nil
	}
	return err == nil && os.SameFile(own, now), err
}
