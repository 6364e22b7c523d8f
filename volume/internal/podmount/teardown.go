package podmount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/eintr"
)

// NotEmptyError says that a directory is not removed because something is in
// it although nothing is mounted on it any more.
type NotEmptyError struct{ Dir string }

func (e *NotEmptyError) Error() string {
	return fmt.Sprintf("nothing is mounted at %s any more, but the directory is not empty; nothing was deleted: look at what is in it, move it away, and try again", e.Dir)
}

// Unwrap returns ENOTEMPTY.
func (e *NotEmptyError) Unwrap() error { return unix.ENOTEMPTY }

// DetachedError says that a mount had to be detached lazily: it is out of
// sight, but its file system may still be in use. The directory was left; the
// next teardown removes it.
type DetachedError struct {
	// Mount is what was detached.
	Mount mount.Entry
}

func (e *DetachedError) Error() string {
	return fmt.Sprintf("%s did not unmount from %s and was detached; its file system may still be in use, and what was not yet written may be lost; tear the volume down again to remove the directory",
		describe(e.Mount.FSType, e.Mount.Source), e.Mount.Target)
}

// TearDown takes every mount off dir and removes dir. It is idempotent. A
// directory that is not empty after that is a *[NotEmptyError]; nothing is
// ever deleted but the empty directory.
func TearDown(ctx context.Context, m mount.Interface, dir string, options mount.UnmountOptions) error {
	if err := UnmountAll(ctx, m, dir, options); err != nil {
		return err
	}
	return RemoveDir(dir)
}

// UnmountAll takes every mount off dir, topmost first, until the table shows
// none. Where one had to be detached lazily the error is a *[DetachedError].
func UnmountAll(ctx context.Context, m mount.Interface, dir string, options mount.UnmountOptions) error {
	var detached error
	for last := -1; ; {
		entry, mounted, err := at(m, dir)
		if err != nil {
			return err
		}
		if !mounted {
			return detached
		}
		if entry.ID == last {
			return fmt.Errorf("%s is still mounted at %s after it was unmounted", describe(entry.FSType, entry.Source), dir)
		}
		rung, err := mount.Unmount(ctx, m, dir, options)
		if err != nil && !errors.Is(err, mount.ErrNotMounted) {
			return err
		}
		if rung == mount.RungLazy {
			detached = &DetachedError{Mount: entry}
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
