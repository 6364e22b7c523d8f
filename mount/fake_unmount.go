package mount

import (
	"context"
	"slices"

	"golang.org/x/sys/unix"
)

// UnmountContext implements [ContextMounter]. It does not follow a link at the
// end of target.
//
// The ladder is the host's:
//
//   - Normal, repeated while it only fails, until ForceAfter.
//   - Force, if the type has it and a call hangs, [OpStatfs] among them. No
//     further mount may show the file system, except mounts that ladders are at
//     as well.
//   - Normal again until LazyAfter, while force is repeated.
//   - Lazy, or for a block device a last normal one.
//
// A target that is not mounted ends the ladder at once. Only [FakeMounter.Use]
// holds a mount of the fake, and errors name no holders. Each attempt is a
// [Call], and faults select which of them hang or fail. As in the kernel, force
// frees hanging calls. Here the normal unmount after it removes the mount.
func (f *FakeMounter) UnmountContext(ctx context.Context, target string, options UnmountOptions) (Rung, error) {
	if err := refuseUnmount(ctx, target); err != nil {
		return RungNone, err
	}
	l := ladder{on: &fakeUnmount{fake: f, target: target}}
	err := l.climb(ctx, options)
	return l.last, wrapUnmount(target, err)
}

// fakeUnmount is one unmount by the fake.
type fakeUnmount struct {
	fake    *FakeMounter
	target  string
	victim  *fakeMount // nil if there is none, for the reason missing
	missing error
}

func (u *fakeUnmount) find(context.Context, bool) {
	u.fake.mu.Lock()
	defer u.fake.mu.Unlock()
	at, err := u.fake.walk(u.target, false)
	switch {
	case err != nil:
		u.missing = err
	case !at.isMountRoot():
		u.missing = unix.EINVAL
	default:
		u.victim = at.mount
	}
}

func (u *fakeUnmount) attempt(ctx context.Context, rung Rung, flags int) (made bool, err error) {
	if u.isGone() {
		return false, nil
	}
	op, effect := OpUnmount, u.fake.unmount
	switch flags {
	case unix.MNT_FORCE:
		op, effect = OpUnmountForce, func(*fakeMount) error { return nil }
	case unix.MNT_DETACH:
		op, effect = OpUnmountLazy, u.fake.unmountLazily
	}
	return true, u.fake.do(ctx, newCall(op, rung, Request{Target: u.target}), func() error {
		if u.victim == nil {
			return u.missing
		}
		return effect(u.victim)
	})
}

func (u *fakeUnmount) onBlock(context.Context) bool {
	return u.victim == nil || u.victim.super.block
}

func (u *fakeUnmount) hasForce(context.Context) bool {
	return u.victim == nil || hasForce(u.victim.super.fstype)
}

// isGone reports whether the mount that was found has been unmounted since.
func (u *fakeUnmount) isGone() bool {
	u.fake.mu.Lock()
	defer u.fake.mu.Unlock()
	return u.victim != nil && u.victim.gone
}

// unmount is the effect of umount2(2) without flags.
func (f *FakeMounter) unmount(m *fakeMount) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m == f.root {
		return &fakeError{"the fake cannot unmount /", unix.EBUSY}
	}
	if m.users > 0 {
		return &fakeError{"a user of the fake has it in use", unix.EBUSY}
	}
	if m.mounts > 0 {
		i := slices.IndexFunc(f.mounts, func(other *fakeMount) bool { return other.parent == m })
		return &fakeError{f.mounts[i].target + " is mounted on or below it", unix.EBUSY}
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

// take detaches a mount, unless it has gone meanwhile.
func (f *FakeMounter) take(m *fakeMount) error {
	if m.gone {
		return nil
	}
	err := f.detach(m)
	f.changed()
	return err
}
