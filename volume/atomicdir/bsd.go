//go:build darwin || freebsd || netbsd || openbsd

package atomicdir

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

const noAccessTime = 0

func removeTree(ctx context.Context, dir *os.File, name string) error {
	return removeAt(ctx, int(dir.Fd()), name)
}

// chmodDir sets the mode of a directory that need not be readable. It follows no link.
func chmodDir(dirfd int, name string, mode uint32) error {
	return eintr.Do(func() error { return unix.Fchmodat(dirfd, name, mode, unix.AT_SYMLINK_NOFOLLOW) })
}
