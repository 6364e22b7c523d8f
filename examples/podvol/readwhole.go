package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/volume/objects/manifest"
)

// errBeingWritten says that somebody has a file open for writing.
var errBeingWritten = errors.New("it is being written")

// readWhole returns the contents of a file that nobody is writing: half a
// manifest can look like a whole one that has lost some pods. A read lease
// (fcntl(2), F_SETLEASE) is refused while a file is open for writing, and keeps
// writers out for as long as the reading takes. Where leases are not to be had,
// as on network file systems and for another user's file, the file is read as
// it is.
func readWhole(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file", path)
	}
	// The lease ends with the file's last descriptor.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); errors.Is(err, unix.EAGAIN) {
		return nil, errBeingWritten
	}
	return io.ReadAll(io.LimitReader(f, manifest.MaxFileBytes+1))
}
