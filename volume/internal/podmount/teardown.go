package podmount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/lazyunmount"
)

// NotEmptyError says that a directory is not removed because something is in
// it although nothing is mounted on it any more.
type NotEmptyError struct{ Dir string }

func (e *NotEmptyError) Error() string {
	return fmt.Sprintf("nothing is mounted at %s any more, but the directory is not empty; nothing was deleted: check its contents, move them away, and try again", e.Dir)
}

// Unwrap returns ENOTEMPTY.
func (e *NotEmptyError) Unwrap() error { return unix.ENOTEMPTY }

// TearDown takes every mount off dir and removes dir. It is idempotent. After a
// lazy detach it fails with a *[lazyunmount.Error], only once: before another
// TearDown the caller must ask that error whether the file system is gone. A
// directory that is not empty after that is a *[NotEmptyError]; nothing is ever
// deleted but the empty directory.
func TearDown(ctx context.Context, m mount.Interface, dir string, options mount.UnmountOptions) error {
	if err := UnmountAll(ctx, m, dir, options); err != nil {
		return err
	}
	return RemoveDir(dir)
}

// UnmountAll takes every mount off dir, topmost first, until the table shows
// none. Where one had to be detached lazily the error is a *[lazyunmount.Error].
func UnmountAll(ctx context.Context, m mount.Interface, dir string, options mount.UnmountOptions) error {
	detached := new(lazyunmount.Error)
	for last := -1; ; {
		entry, mounted, err := at(m, dir)
		if err != nil {
			return err
		}
		if !mounted {
			if len(detached.Superblocks) > 0 {
				return detached
			}
			return nil
		}
		if entry.ID == last {
			return fmt.Errorf("%s is still mounted at %s after it was unmounted", describe(entry.FSType, entry.Source), dir)
		}
		var superblock table.Superblock
		if options.LazyAfter > 0 {
			superblock = table.SuperblockOf(m, entry) // which may be out of sight later
		}
		rung, err := mount.Unmount(ctx, m, dir, options)
		if err != nil && !errors.Is(err, mount.ErrNotMounted) {
			if len(detached.Superblocks) > 0 {
				return errors.Join(err, detached)
			}
			return err
		}
		if rung == mount.RungLazy {
			detached.Mount, detached.Superblocks = entry, append(detached.Superblocks, superblock)
		}
		last = entry.ID
	}
}

// RemoveDir removes an empty directory; a missing one is success. The error is
// a *[NotEmptyError] or an *[fs.PathError].
func RemoveDir(dir string) error {
	err := eintr.Do(func() error { return unix.Rmdir(dir) })
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return &NotEmptyError{Dir: dir}
	}
	return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
}

// outermost returns err if it is an error of package volume. One that err wraps, or joins
// with others, does not count: the text around it would be lost.
func outermost(err error) (*volume.Error, bool) {
	own, ok := errors.AsType[*volume.Error](err)
	return own, ok && error(own) == err
}

// IsDetached reports whether an error says that mounts were detached lazily, and
// nothing else.
func IsDetached(err error) bool {
	if of, ok := outermost(err); ok {
		err = of.Err
	}
	detached, ok := errors.AsType[*lazyunmount.Error](err)
	return ok && error(detached) == err
}

// JoinDetached joins the errors of earlier and new detached mounts; either may be
// nil.
func JoinDetached(then, now *lazyunmount.Error) *lazyunmount.Error {
	switch {
	case then == nil:
		return now
	case now == nil:
		return then
	}
	return &lazyunmount.Error{Mount: now.Mount, Superblocks: slices.Concat(then.Superblocks, now.Superblocks)}
}
