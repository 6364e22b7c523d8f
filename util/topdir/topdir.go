// Package topdir asks a file system to lay the subdirectories of a directory out over the
// disk instead of side by side.
//
// ext4 makes a directory, and its files, near the directory above. Without a journal, as on
// many a micro-VM, it reuses an inode only one to five minutes after it was freed. Until then
// each new file passes all freed inodes of its block group one by one (recently_deleted in
// fs/ext4/ialloc.c). Below a directory where others come and go, as pods do, soon each new
// file has to pass thousands. Below the top of a hierarchy of its own (chattr(1), the
// attribute T) each directory begins with a block group of its own.
//
// Like every package below util, it carries no promise of compatibility.
package topdir

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

const flag = 0x00020000 // FS_TOPDIR_FL of linux/fs.h

// Mark gives a directory the attribute. It is for a directory with independent
// subdirectories, and may be repeated. Existing files stay where they are.
//
// It returns an error that is [errors.ErrUnsupported] on a file system that does
// not have the attribute, or does not need it: in Linux 6.18 ext4 alone heeds it.
// Nothing depends on it.
func Mark(dir string) error {
	fd, err := eintr.Get(func() (int, error) {
		return unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	flags, err := eintr.Get(func() (uint32, error) { return unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS) })
	if err == nil && flags&flag == 0 {
		err = eintr.Do(func() error { return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags|flag)) })
	}
	// Some say so of the call, as ioctl(2) has it, and others of the attribute.
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	if err != nil {
		return fmt.Errorf("lay out the subdirectories of %s over the disk: %w", dir, err)
	}
	return nil
}
