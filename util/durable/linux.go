//go:build linux

package durable

import (
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// linkUnnamed makes a file that has no name before it is whole, so that a crash
// leaves nothing. Not every file system can (open(2), O_TMPFILE), and it needs /proc.
func linkUnnamed(dir *os.File, base string, data []byte, perm fs.FileMode) error {
	dirfd := int(dir.Fd())
	fd, err := eintr.Get(func() (int, error) {
		return unix.Openat(dirfd, ".", unix.O_WRONLY|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	if err := fill(f, data, perm); err != nil {
		return err
	}
	from := "/proc/self/fd/" + strconv.Itoa(fd)
	return eintr.Do(func() error { return unix.Linkat(unix.AT_FDCWD, from, dirfd, base, unix.AT_SYMLINK_FOLLOW) })
}

// syncNew syncs a file that is new. So fdatasync(2) writes its size and with it the
// rest of the inode; only time stamps may be left out.
func syncNew(f *os.File) error {
	return eintr.Do(func() error { return unix.Fdatasync(int(f.Fd())) })
}
