//go:build linux

package atomicdir

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/removetree"
)

const (
	pathOnly     = unix.O_PATH
	noAccessTime = unix.O_NOATIME
)

func removeTree(ctx context.Context, dir *os.File, name string) error {
	return removetree.RemoveAt(ctx, dir, name)
}
