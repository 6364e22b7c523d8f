package mount

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// busyFirst and busyLast bound the pauses between attempts at a busy
	// mount while a higher rung is still to come. The kernel does not tell
	// when a mount ceases to be busy.
	busyFirst = 50 * time.Millisecond
	busyLast  = time.Second
)

// errNotLazy says that the last rung was not taken.
var errNotLazy = errors.New("a file system on a block device is not detached lazily")

// UnmountContext implements [ContextMounter]. A link at the end of target is
// not followed.
//
// The rungs, each in a goroutine of its own that a hung one does not hold up:
// normal, and again while it is only busy, until ForceAfter; then force; then
// normal again, whatever force returned, until LazyAfter; then lazy. Each rung
// acts only as long as the mount that was found at the start is still the
// topmost at target, so that a second attempt never unmounts what was mounted
// beneath. Force is skipped if LazyAfter comes before ForceAfter. Without a
// further rung a busy mount is [ErrBusy] at once. Errors that no rung can help
// against (not mounted, not permitted) end the ladder. No umount.<type> helper
// is run.
//
// A file system on a block device is never detached lazily: those with a
// device number of their own, and those that span several devices (btrfs,
// bcachefs, zfs, ubifs, or a source below /dev), whose number tells nothing.
func (m *HostMounter) UnmountContext(ctx context.Context, target string, options UnmountOptions) (Rung, error) {
	start := time.Now()
	rung, err := m.tryUnmount(ctx, target, options)
	m.config.Logger.DebugContext(ctx, "unmount", "target", target, "rung", rung.String(), "took", time.Since(start), "error", err)
	return rung, err
}

func (m *HostMounter) tryUnmount(ctx context.Context, target string, options UnmountOptions) (Rung, error) {
	if !filepath.IsAbs(target) {
		err := &causedError{ErrNoTarget, fmt.Errorf("the mount point %q is not an absolute path", target)}
		return RungNone, wrapUnmount(target, err)
	}
	if ctx.Err() != nil {
		return RungNone, certain(wrapUnmount(target, ended(ctx)))
	}
	l := &ladder{m: m, target: filepath.Clean(target)}
	if err := l.climb(ctx, options); err != nil {
		return l.last, l.fail(err)
	}
	return l.last, nil
}

// ladder is one unmount under way.
type ladder struct {
	m      *HostMounter
	target string
	// mounted and known are the mount to be unmounted, once it is looked up.
	mounted Entry
	known   bool
	// last is the last rung that was tried.
	last Rung
}

// climb tries the rungs in turn.
func (l *ladder) climb(ctx context.Context, o UnmountOptions) error {
	start := time.Now()
	until := func(after time.Duration) (context.Context, context.CancelFunc) {
		if after <= 0 {
			return context.WithCancel(ctx)
		}
		return context.WithDeadline(ctx, start.Add(after))
	}
	toForce, toLazy := o.ForceAfter > 0, o.LazyAfter > 0
	first := o.ForceAfter
	if !toForce || toLazy && o.LazyAfter < first {
		first, toForce = o.LazyAfter, false
	}

	normalCtx, cancel := until(first)
	defer cancel()
	l.lookUp(normalCtx)
	err := l.normal(normalCtx, toForce || toLazy)
	if ctx.Err() != nil || !higherRungHelps(err) {
		return err
	}
	if toForce {
		forceCtx, cancel := until(o.LazyAfter)
		defer cancel()
		l.last = RungForce
		forceErr := l.try(forceCtx, RungForce, unix.MNT_FORCE)
		if err = l.normal(forceCtx, toLazy); err != nil && forceErr != nil && !toLazy {
			err = fmt.Errorf("%w (the forced unmount: %v)", err, forceErr)
		}
		if ctx.Err() != nil || !higherRungHelps(err) {
			return err
		}
	}
	if !toLazy {
		return err
	}
	return l.lazy(ctx)
}

// lookUp finds the mount that is to be unmounted. Where it cannot be found in
// time the rungs act on whatever is topmost.
func (l *ladder) lookUp(ctx context.Context) {
	var found Entry
	var ok bool
	err := l.m.calls.Do(ctx, callKey{l.target, RungNone}, func() error {
		table, err := l.m.table()
		if err != nil {
			return err
		}
		found, ok, err = table.At(l.target)
		return err
	})
	if err == nil {
		l.mounted, l.known = found, ok
	}
}

// normal unmounts normally; with retry, again and again until ctx ends.
func (l *ladder) normal(ctx context.Context, retry bool) error {
	l.last = max(l.last, RungNormal)
	for pause := busyFirst; ; pause = min(2*pause, busyLast) {
		err := l.try(ctx, RungNormal, 0)
		if !retry || ctx.Err() != nil || !higherRungHelps(err) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// lazy detaches the mount, unless it is on a block device; then a normal
// unmount that still hangs is waited for.
func (l *ladder) lazy(ctx context.Context) error {
	if l.known && onBlockDevice(l.mounted) {
		if err := l.normal(ctx, false); err != nil {
			return fmt.Errorf("%w (%w)", err, errNotLazy)
		}
		return nil
	}
	l.last = RungLazy
	return l.try(ctx, RungLazy, unix.MNT_DETACH)
}

// try makes one umount2(2) call, after an earlier one of the same rung has
// returned. A mount that is gone already is success.
func (l *ladder) try(ctx context.Context, rung Rung, flags int) error {
	known, id := l.known, l.mounted.ID
	return l.m.calls.Do(ctx, callKey{l.target, rung}, func() error {
		if known {
			now, ok, err := l.m.at(l.target)
			if err == nil && (!ok || now.ID != id) {
				return nil
			}
		}
		return l.m.sys.unmount(l.target, flags|unix.UMOUNT_NOFOLLOW)
	})
}

func (m *HostMounter) at(target string) (Entry, bool, error) {
	table, err := m.table()
	if err != nil {
		return Entry{}, false, err
	}
	return table.At(target)
}

// fail makes the *Error of a failed unmount. The kernel says EINVAL both where
// nothing is mounted and where a mount belongs to a more privileged namespace.
func (l *ladder) fail(err error) error {
	if errors.Is(err, unix.EINVAL) && l.known {
		err = &causedError{ErrNotPermitted, fmt.Errorf("the mount is locked by the namespace it came from: %w", err)}
	}
	e := Error{Op: OpUnmount, Target: l.target}
	if l.known {
		e.Source, e.FSType = l.mounted.Source, l.mounted.FSType
	}
	return wrapCall(err, e)
}

// higherRungHelps tells errors of a mount that exists and will not go from
// those that say there is nothing to unmount or no right to.
func higherRungHelps(err error) bool {
	if err == nil {
		return false
	}
	for _, final := range []error{unix.EINVAL, unix.ENOENT, unix.ENOTDIR, unix.EPERM, unix.EACCES, unix.ELOOP, unix.ENAMETOOLONG, unix.ENOSYS} {
		if errors.Is(err, final) {
			return false
		}
	}
	return true
}

// onBlockDevice reports whether the file system's data is on a block device.
func onBlockDevice(e Entry) bool {
	if unix.Major(e.Device) != 0 || strings.HasPrefix(e.Source, "/dev/") {
		return true
	}
	return slices.Contains([]string{"btrfs", "bcachefs", "zfs", "ubifs"}, e.FSType)
}
