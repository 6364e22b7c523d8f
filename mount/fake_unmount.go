package mount

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// UnmountContext implements [ContextMounter]. A link at the end of target is
// not followed.
//
// The ladder is the host's: normal, again and again while it only fails, until
// ForceAfter; then force; then normal again until LazyAfter; then lazy, or for
// a block device a last normal one. What is not mounted ends it at once. Each
// attempt is a [Call], and faults say which of them hang or fail. As in the
// kernel, forcing frees what hangs; it is the normal unmount after it that
// takes the mount away here.
func (f *FakeMounter) UnmountContext(ctx context.Context, target string, options UnmountOptions) (Rung, error) {
	if !filepath.IsAbs(target) {
		err := &causedError{ErrNoTarget, fmt.Errorf("the mount point %q is not an absolute path", target)}
		return RungNone, wrapUnmount(target, err)
	}
	if ctx.Err() != nil {
		return RungNone, certain(wrapUnmount(target, context.Cause(ctx)))
	}
	l := f.newLadder(target)
	err := l.climb(ctx, options)
	return l.last, wrapUnmount(target, err)
}

// fakeLadder is one unmount on its way through the rungs. All of them act on
// the mount that was found at the start.
type fakeLadder struct {
	fake    *FakeMounter
	target  string
	victim  *fakeMount // nil if there is none, for the reason missing
	missing error
	last    Rung
}

func (f *FakeMounter) newLadder(target string) *fakeLadder {
	l := &fakeLadder{fake: f, target: target}
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.walk(target, false)
	switch {
	case err != nil:
		l.missing = err
	case !at.isMountRoot():
		l.missing = unix.EINVAL
	default:
		l.victim = at.mount
	}
	return l
}

func (l *fakeLadder) climb(ctx context.Context, o UnmountOptions) error {
	if l.victim == nil {
		return l.try(ctx, OpUnmount, RungNormal, func() error { return l.missing })
	}
	start := time.Now()
	until := func(after time.Duration) (context.Context, context.CancelFunc) {
		if after <= 0 {
			return context.WithCancel(ctx)
		}
		return context.WithDeadline(ctx, start.Add(after))
	}
	toLazy := o.LazyAfter > 0
	toForce := o.ForceAfter > 0 && (!toLazy || o.ForceAfter < o.LazyAfter)
	first := o.LazyAfter
	if toForce {
		first = o.ForceAfter
	}

	rungCtx, cancel := until(first)
	defer cancel()
	err := l.normal(rungCtx, RungNormal, toForce || toLazy)
	if toForce && l.goesOn(ctx, err) {
		rungCtx, cancel := until(o.LazyAfter)
		defer cancel()
		// Whatever forcing returns: the unmount after it tells.
		_ = l.try(rungCtx, OpUnmountForce, RungForce, func() error { return nil })
		err = l.normal(rungCtx, RungForce, toLazy)
	}
	if !toLazy || !l.goesOn(ctx, err) {
		return err
	}
	if l.victim.super.block {
		if err := l.normal(ctx, l.last, false); err != nil {
			return fmt.Errorf("%w (%w)", err, errNotLazy)
		}
		return nil
	}
	return l.try(ctx, OpUnmountLazy, RungLazy, func() error { return l.fake.unmountLazily(l.victim) })
}

// goesOn reports whether the next rung may help against err.
func (l *fakeLadder) goesOn(ctx context.Context, err error) bool {
	return ctx.Err() == nil && higherRungHelps(err)
}

// normal unmounts normally; with retry, again and again until ctx ends.
func (l *fakeLadder) normal(ctx context.Context, rung Rung, retry bool) error {
	for pause := busyFirst; ; pause = min(2*pause, busyLast) {
		err := l.try(ctx, OpUnmount, rung, func() error { return l.fake.unmount(l.victim) })
		if !retry || !l.goesOn(ctx, err) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// try makes one call. Where an earlier one, failed as it seemed, has taken the
// mount away, there is nothing left to do.
func (l *fakeLadder) try(ctx context.Context, op string, rung Rung, effect func() error) error {
	if l.last != RungNone && l.fake.isGone(l.victim) {
		return nil
	}
	l.last = rung
	return l.fake.do(ctx, newCall(op, rung, Request{Target: l.target}), effect)
}

// unmount is the effect of umount2(2) without flags.
func (f *FakeMounter) unmount(m *fakeMount) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m == f.root {
		return &fakeError{"the fake cannot unmount /", unix.EBUSY}
	}
	for _, other := range f.mounts {
		if other.parent == m {
			return &fakeError{other.target + " is mounted on or below it", unix.EBUSY}
		}
	}
	return f.take(m)
}

// unmountLazily is the effect of umount2(2) with MNT_DETACH.
func (f *FakeMounter) unmountLazily(m *fakeMount) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m == f.root {
		return &fakeError{"the fake cannot unmount /", unix.EBUSY}
	}
	return f.take(m)
}

// take detaches a mount that may have gone meanwhile.
func (f *FakeMounter) take(m *fakeMount) error {
	if m.gone {
		return unix.EINVAL
	}
	err := f.detach(m)
	f.changed()
	return err
}

func (f *FakeMounter) isGone(m *fakeMount) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return m.gone
}
