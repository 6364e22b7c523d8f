package kubeletapi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// openLog opens a log, but no link and nothing else that has taken its place.
func openLog(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		file.Close()
		return nil, errors.Join(err, fmt.Errorf("%s is no regular file", path))
	}
	return file, nil
}

// nextLog opens the log that has taken the place of one that was rotated; nil: none has.
func nextLog(file *os.File) (*os.File, error) {
	is, err := file.Stat()
	if err != nil {
		return nil, err
	}
	next, err := openLog(file.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if now, err := next.Stat(); err != nil || os.SameFile(is, now) {
		next.Close()
		return nil, err
	}
	return next, nil
}
