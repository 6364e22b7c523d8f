package fakemount

import (
	"context"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/fstypes"
	"github.com/podvol/podvol/mount/internal/ladder"
)

// UnmountContext implements [mount.ContextMounter]. It does not follow a link at the
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
// A target that is not mounted ends the ladder at once. Only [Mounter.Use]
// holds a mount of the fake, and errors name no holders. Each attempt is a
// [Call], and faults select which of them hang or fail. As in the kernel, force
// frees hanging calls. Here the normal unmount after it removes the mount.
func (f *Mounter) UnmountContext(ctx context.Context, target string, options mount.UnmountOptions) (mount.Rung, error) {
	if err := ladder.Refuse(ctx, target); err != nil {
		return mount.RungNone, err
	}
	l := ladder.Ladder{On: &fakeUnmount{fake: f, target: target}}
	err := l.Climb(ctx, options)
	return l.Last, mount.UnmountFailed(target, err)
}

// fakeUnmount is one unmount by the fake.
type fakeUnmount struct {
	fake    *Mounter
	target  string
	victim  *fakeMount // nil if there is none, for the reason missing
	missing error
}

func (u *fakeUnmount) Find(context.Context, bool) {
	u.fake.ns.mu.Lock()
	defer u.fake.ns.mu.Unlock()
	at, err := u.fake.ns.walk(u.target, false)
	switch {
	case err != nil:
		u.missing = err
	case !at.isMountRoot():
		u.missing = unix.EINVAL
	default:
		u.victim = at.mount
	}
}

func (u *fakeUnmount) Attempt(ctx context.Context, rung mount.Rung, flags int) (made bool, err error) {
	if u.isGone() {
		return false, nil
	}
	op, effect := mount.OpUnmount, u.fake.ns.unmount
	switch flags {
	case unix.MNT_FORCE:
		op, effect = OpUnmountForce, func(*fakeMount) error { return nil }
	case unix.MNT_DETACH:
		op, effect = OpUnmountLazy, u.fake.ns.unmountLazily
	}
	return true, u.fake.do(ctx, newCall(op, rung, mount.Request{Target: u.target}), func() error {
		if u.victim == nil {
			return u.missing
		}
		return effect(u.victim)
	})
}

func (u *fakeUnmount) OnBlock(context.Context) bool {
	return u.victim == nil || u.victim.super.block
}

func (u *fakeUnmount) HasForce(context.Context) bool {
	return u.victim == nil || fstypes.HasForce(u.victim.super.fstype)
}

// isGone reports whether the mount that was found has been unmounted since.
func (u *fakeUnmount) isGone() bool {
	u.fake.ns.mu.Lock()
	defer u.fake.ns.mu.Unlock()
	return u.victim != nil && u.victim.gone
}

// unmount is the effect of umount2(2) without flags.
func (ns *namespace) unmount(m *fakeMount) error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if m == ns.root {
		return &fakeError{"the fake cannot unmount /", unix.EBUSY}
	}
	if m.users > 0 {
		return &fakeError{"a user of the fake has it in use", unix.EBUSY}
	}
	if m.mounts > 0 {
		i := slices.IndexFunc(ns.mounts, func(other *fakeMount) bool { return other.parent == m })
		return &fakeError{ns.mounts[i].target + " is mounted on or below it", unix.EBUSY}
	}
	return ns.take(m)
}

// unmountLazily is the effect of umount2(2) with MNT_DETACH.
func (ns *namespace) unmountLazily(m *fakeMount) error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if m == ns.root {
		return &fakeError{"the fake cannot unmount /", unix.EBUSY}
	}
	return ns.take(m)
}

// take detaches a mount, unless it has gone meanwhile.
func (ns *namespace) take(m *fakeMount) error {
	if m.gone {
		return nil
	}
	err := ns.detach(m)
	ns.changed()
	return err
}

// Answers implements [ladder.unmounter]: the fake answers unless a fault keeps it from
// that.
func (u *fakeUnmount) Answers(ctx context.Context) bool {
	return !ladder.IsSilence(u.fake.do(ctx, newCall(OpStatfs, mount.RungNone, mount.Request{Target: u.target}), func() error { return nil }))
}

// IsOver implements [ladder.unmounter].
func (u *fakeUnmount) IsOver() bool {
	u.fake.ns.mu.Lock()
	defer u.fake.ns.mu.Unlock()
	v := u.victim
	return v != nil && v.gone && fstypes.Family(v.super.fstype) == "nfs" && v.super.mounts == 0 && v.super.users == 0
}

// Enter implements [ladder.unmounter].
func (u *fakeUnmount) Enter(h ladder.Headway) (leave func()) {
	v := u.victim
	if v == nil {
		return func() {}
	}
	add := func(n int) {
		u.fake.ns.mu.Lock()
		defer u.fake.ns.mu.Unlock()
		v.ladders[h] += n
	}
	add(1)
	return func() { add(-1) }
}

// IsShared implements [ladder.unmounter].
func (u *fakeUnmount) IsShared(h ladder.Headway) bool {
	u.fake.ns.mu.Lock()
	defer u.fake.ns.mu.Unlock()
	if u.victim == nil {
		return true
	}
	for _, m := range u.fake.ns.mounts {
		if m != u.victim && m.super == u.victim.super && !m.ladders.Reached(h) {
			return true
		}
	}
	return false
}
