//go:build linux || darwin || freebsd || netbsd || openbsd

package atomicdir

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// removeAt removes the file, link or directory tree with this name in an open directory. A
// missing one is success. It works by descriptor, follows no link and removes nothing of
// another file system. It is for the systems that package removetree does not build for, and
// builds on Linux for the test of it.
func removeAt(ctx context.Context, dirfd int, name string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	unlinkErr := unlink(dirfd, name)
	if unlinkErr == nil {
		return nil
	}
	fd, err := openDirAt(dirfd, name)
	if errors.Is(err, unix.EACCES) {
		if err = chmodDir(dirfd, name, 0o700); err == nil {
			fd, err = openDirAt(dirfd, name)
		}
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil { // it is no directory, or one that cannot be read
		return fmt.Errorf("%w (opened as a directory: %w)", unlinkErr, err)
	}
	defer unix.Close(fd)
	var parent, st unix.Stat_t
	if err := errors.Join(fstat(dirfd, &parent), fstat(fd, &st)); err != nil {
		return err
	}
	if st.Dev != parent.Dev {
		return unix.EXDEV
	}
	return removeOpen(ctx, dirfd, name, fd)
}

// removeOpen removes the directory that is open as fd.
func removeOpen(ctx context.Context, dirfd int, name string, fd int) error {
	names, err := readNames(fd)
	if err != nil {
		return err
	}
	widened := false
	for _, below := range names {
		err := removeAt(ctx, fd, below)
		if errors.Is(err, unix.EACCES) && !widened { // it may be read, but not changed
			widened = true
			if err = eintr.Do(func() error { return unix.Fchmod(fd, 0o700) }); err == nil {
				err = removeAt(ctx, fd, below)
			}
		}
		if err != nil {
			return err
		}
	}
	return removeDir(dirfd, name)
}

// removeDir removes an empty directory. That it is gone already is success.
func removeDir(dirfd int, name string) error {
	err := eintr.Do(func() error { return unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR) })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
