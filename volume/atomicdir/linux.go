//go:build linux

package atomicdir

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/removetree"
)

const noAccessTime = unix.O_NOATIME

func removeTree(ctx context.Context, dir *os.File, name string) error {
	return removetree.RemoveAt(ctx, dir, name)
}

// chmodDir sets the mode of a directory that need not be readable. It follows no link.
func chmodDir(dirfd int, name string, mode uint32) error {
	fd, err := openAt(dirfd, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = unix.Fchmodat(fd, "", mode, unix.AT_EMPTY_PATH)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) { // before Linux 6.6, or an older seccomp filter
		return eintr.Do(func() error { return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode) })
	}
	return err
}
