package kubeletapi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// openLog opens a log below a directory of the node's, but nothing that has taken its place.
// No element of its path below there may be a link.
func openLog(dir, name string) (*os.File, error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for rest, more := filepath.Clean(name), true; more; {
		var element string
		element, rest, more = strings.Cut(rest, "/")
		flags := unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK
		if more {
			flags |= unix.O_DIRECTORY
		}
		path := filepath.Join(file.Name(), element)
		fd, err := eintr.Get(func() (int, error) { return unix.Openat(int(file.Fd()), element, flags, 0) })
		file.Close()
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		file = os.NewFile(uintptr(fd), path)
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		file.Close()
		return nil, errors.Join(err, fmt.Errorf("%s is no regular file", file.Name()))
	}
	return file, nil
}

// next opens the log that has taken the place of one that was rotated; nil: none has.
func (l *printed) next() (*os.File, error) {
	is, err := l.file.Stat()
	if err != nil {
		return nil, err
	}
	next, err := l.open()
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
