package mount

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/flight"
)

// UnmountContext implements [ContextMounter]. A rung that fails or hangs gives
// way to the next one when that one's time has come; what does not exist or is
// not mounted fails at once. Each rung is a [Call] of its own, and faults say
// which of them hang. Forcing by itself only frees what hangs in the kernel;
// the normal unmount that follows it detaches the mount. A block device is not
// detached lazily.
func (f *FakeMounter) UnmountContext(ctx context.Context, target string, options UnmountOptions) (Rung, error) {
	l := f.newLadder(target, options)
	rung, err := l.climb(ctx)
	return rung, wrapUnmount(target, err)
}

// fakeLadder is one unmount on its way through the rungs.
type fakeLadder struct {
	fake   *FakeMounter
	target string
	// victim is the mount to go, or missing why there is none.
	victim  *fakeMount
	missing error
	// forceAt and lazyAt are when the rungs are due; zero is never.
	forceAt, lazyAt time.Time
}

func (f *FakeMounter) newLadder(target string, options UnmountOptions) *fakeLadder {
	l := &fakeLadder{fake: f, target: target}
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.walk(target, true)
	switch {
	case err != nil:
		l.missing = err
		return l
	case !at.isMountRoot():
		l.missing = unix.EINVAL
		return l
	}
	l.victim = at.mount
	start := time.Now()
	if options.LazyAfter > 0 && !l.victim.super.block {
		l.lazyAt = start.Add(options.LazyAfter)
	}
	if options.ForceAfter > 0 && (l.lazyAt.IsZero() || options.ForceAfter < options.LazyAfter) {
		l.forceAt = start.Add(options.ForceAfter)
	}
	return l
}

func (l *fakeLadder) climb(ctx context.Context) (Rung, error) {
	if ctx.Err() != nil {
		return RungNone, &flight.AbandonedError{Err: context.Cause(ctx)}
	}
	err := l.normal(ctx, RungNormal, l.next())
	if err == nil || l.isFinal(ctx, err) {
		return RungNormal, err
	}
	rung := RungNormal
	if !l.forceAt.IsZero() {
		rung = RungForce
		// What forcing returns does not matter: the unmount after it tells.
		_ = l.step(ctx, OpUnmountForce, RungForce, l.lazyAt, func() error { return nil })
		err = l.normal(ctx, RungForce, l.lazyAt)
		if err == nil || ctx.Err() != nil || l.lazyAt.IsZero() {
			return rung, err
		}
		if ended := sleepUntil(ctx, l.lazyAt); ended != nil {
			return rung, ended
		}
	}
	return RungLazy, l.step(ctx, OpUnmountLazy, RungLazy, time.Time{}, l.fake.detachLazily(l.victim))
}

// next is when the rung after the first is due.
func (l *fakeLadder) next() time.Time {
	if !l.forceAt.IsZero() {
		return l.forceAt
	}
	return l.lazyAt
}

// isFinal reports whether no further rung can help, after waiting for it.
func (l *fakeLadder) isFinal(ctx context.Context, err error) bool {
	if l.missing != nil || l.next().IsZero() || errors.Is(err, unix.EINVAL) {
		return true
	}
	return sleepUntil(ctx, l.next()) != nil
}

func (l *fakeLadder) normal(ctx context.Context, rung Rung, until time.Time) error {
	return l.step(ctx, OpUnmount, rung, until, func() error {
		if l.missing != nil {
			return l.missing
		}
		return l.fake.unmount(l.victim)
	})
}

// step makes one call, until the next rung is due.
func (l *fakeLadder) step(ctx context.Context, op string, rung Rung, until time.Time, effect func() error) error {
	if !until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	err := l.fake.do(ctx, newCall(op, rung, Request{Target: l.target}), effect)
	if err != nil && rung != RungNormal && l.fake.isGone(l.victim) && errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// unmount is the effect of umount2(2) without flags.
func (f *FakeMounter) unmount(m *fakeMount) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.gone {
		return unix.EINVAL
	}
	if m == f.root {
		return unix.EBUSY
	}
	for _, other := range f.mounts {
		if other.parent == m {
			return fmt.Errorf("%s is mounted below or on it: %w", other.target, unix.EBUSY)
		}
	}
	err := f.detach(m)
	f.changed()
	return err
}

func (f *FakeMounter) detachLazily(m *fakeMount) func() error {
	return func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if m.gone {
			return nil
		}
		err := f.detach(m)
		f.changed()
		return err
	}
}

func (f *FakeMounter) isGone(m *fakeMount) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return m.gone
}

func sleepUntil(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return &flight.AbandonedError{Started: true, Err: context.Cause(ctx)}
	}
}
