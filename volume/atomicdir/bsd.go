//go:build darwin || freebsd || netbsd || openbsd

package atomicdir

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

const (
	pathOnly     = unix.O_RDONLY
	noAccessTime = 0
)

// removeTree removes one entry of an open directory. It follows no link.
func removeTree(_ context.Context, dir *os.File, name string) error {
	root, err := os.OpenRoot(dir.Name())
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(name)
}
