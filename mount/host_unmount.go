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

	"github.com/podvol/podvol/util/flight"
)

// UnmountContext implements [ContextMounter]. A link at the end of target is
// not followed.
//
// The rungs, each in a goroutine of its own that a hung one does not hold up:
// normal, and again while it is only busy, until ForceAfter; then force; then
// normal again, whatever force returned, until LazyAfter; then lazy. Each rung
// acts only as long as the mount that was found at the start is still the
// topmost at target, so that a second attempt never unmounts what was mounted
// beneath. Force is skipped where lazy is due first or at the same time.
// Without a further rung a busy mount is [ErrBusy] at once. Errors that no rung
// can help against (not mounted, not permitted) end the ladder. A rung that did
// not get as far as its system call is not reported. No umount.<type> helper is
// run.
//
// A file system on a block device is never detached lazily: those with a
// device number of their own, those that span several devices (btrfs,
// bcachefs, zfs, ubifs, or a source below /dev), whose number tells nothing,
// and whatever cannot be found in the mount table.
func (m *HostMounter) UnmountContext(ctx context.Context, target string, options UnmountOptions) (Rung, error) {
	start := time.Now()
	rung, err := m.tryUnmount(ctx, target, options)
	m.config.Logger.DebugContext(ctx, "unmount", "target", target, "rung", rung.String(), "took", time.Since(start), "error", err)
	return rung, err
}

func (m *HostMounter) tryUnmount(ctx context.Context, target string, options UnmountOptions) (Rung, error) {
	if err := refuseUnmount(ctx, target); err != nil {
		return RungNone, err
	}
	u := &hostUnmount{m: m, target: filepath.Clean(target)}
	l := ladder{on: u}
	if err := l.climb(ctx, options); err != nil {
		return l.last, u.fail(err)
	}
	return l.last, nil
}

// hostUnmount is one unmount by the kernel. Where the mount was not found, the
// rungs act on whatever is topmost.
type hostUnmount struct {
	m      *HostMounter
	target string
	// mounted and known are the mount to be unmounted, once it is found.
	mounted Entry
	known   bool
}

func (u *hostUnmount) find(ctx context.Context) {
	var found Entry
	var ok bool
	err := u.m.calls.Do(ctx, callKey{u.target, RungNone}, func() (err error) {
		found, ok, err = u.m.table.At(u.target)
		return err
	})
	if err == nil {
		u.mounted, u.known = found, ok
	}
}

// attempt makes a call after an earlier one of the same kind has returned. The
// call is not made any more once ctx has ended.
func (u *hostUnmount) attempt(ctx context.Context, _ Rung, flags int) (made bool, err error) {
	var g gate
	known, id := u.known, u.mounted.ID
	err = u.m.calls.Do(ctx, unmountKey(u.target, flags), func() error {
		if known {
			now, ok, err := u.m.table.At(u.target)
			if err == nil && (!ok || now.ID != id) {
				return nil
			}
		}
		if !g.take() {
			return errGivenUp
		}
		return u.m.sys.unmount(u.target, flags|unix.UMOUNT_NOFOLLOW)
	})
	abandoned, ok := errors.AsType[*flight.AbandonedError](err)
	return ok && abandoned.Earlier || !g.take(), err
}

func unmountKey(target string, flags int) callKey {
	switch flags {
	case unix.MNT_FORCE:
		return callKey{target, RungForce}
	case unix.MNT_DETACH:
		return callKey{target, RungLazy}
	}
	return mountKey(target)
}

func (u *hostUnmount) onBlock(ctx context.Context) bool {
	if !u.known {
		u.find(ctx)
	}
	return !u.known || onBlockDevice(u.mounted)
}

// fail makes the *Error of a failed unmount. The kernel says EINVAL both where
// nothing is mounted and where a mount belongs to a more privileged namespace.
func (u *hostUnmount) fail(err error) error {
	if errors.Is(err, unix.EINVAL) && u.known {
		err = &causedError{ErrNotPermitted, fmt.Errorf("the mount is locked by the namespace it came from: %w", err)}
	}
	e := Error{Op: OpUnmount, Target: u.target}
	if u.known {
		e.Source, e.FSType = u.mounted.Source, u.mounted.FSType
	}
	return wrapCall(err, e)
}

// onBlockDevice reports whether the file system's data is on a block device.
func onBlockDevice(e Entry) bool {
	if unix.Major(e.Device) != 0 || strings.HasPrefix(e.Source, "/dev/") {
		return true
	}
	return slices.Contains([]string{"btrfs", "bcachefs", "zfs", "ubifs"}, e.FSType)
}
