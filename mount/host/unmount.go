package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/fstypes"
	"github.com/podvol/podvol/mount/internal/ladder"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/retry"
)

// UnmountContext implements [mount.ContextMounter]. It does not follow a link at the end of
// target.
//
// The rungs, each in a goroutine of its own, so that a hung one does not stop the others:
//
//   - Normal, repeated while the mount is only busy, until ForceAfter.
//   - Force, if the type has it (nfs, cifs, ceph, 9p, fuse and their variants), its
//     server or daemon is silent, and no other mount suffers ([mount.UnmountOptions]). It is
//     skipped if lazy is due first or at the same time.
//   - Normal again, whatever force returned, until LazyAfter. Force is repeated too: NFS
//     fails only the requests that wait for the server at that moment.
//   - Lazy.
//
// The results:
//
//   - Each rung acts only as long as the mount that was found at the start is still the
//     topmost at target. So a second attempt never unmounts a mount beneath. The rungs
//     check that and act one after the other, unless one hangs for a second.
//   - If an NFS mount and its file system are gone, that is a success even if the call
//     still hangs, as NFSv4's last call to a dead server does. If the file system hangs
//     out of sight, the rung is [mount.RungLazy].
//   - Without a further rung a busy mount is [mount.ErrBusy] at once. Errors that no rung can
//     solve (not mounted, not permitted) end the ladder.
//   - A rung that did not reach its system call is not reported. No umount.<type> helper
//     is run.
//   - If an unmount took more than the normal rung, that is logged as a warning, with the
//     data that may be lost ([mount.Rung.Loss]).
//
// The kernel gets the target by a descriptor of its parent directory. So a link that
// replaces one of the parents after the mount was found has no effect. A target that
// leads elsewhere by then is [mount.ErrTargetReplaced]. With a context that never ends and
// no further rung no mount is looked for before, and the first call is made by the path.
//
// A file system on a block device is never detached lazily. These count as such:
//
//   - file systems with a device number of their own;
//   - those that span several devices (btrfs, bcachefs, zfs, ubifs, or a source below
//     /dev), whose number says nothing;
//   - and every mount that is not in the mount table.
func (m *Mounter) UnmountContext(ctx context.Context, target string, options mount.UnmountOptions) (mount.Rung, error) {
	return m.unmount(ctx, target, options, nil)
}

// unmount is UnmountContext. Its normal rung is that of by, if that is not nil.
func (m *Mounter) unmount(ctx context.Context, target string, options mount.UnmountOptions, by *foreign) (mount.Rung, error) {
	start := time.Now()
	u := &hostUnmount{m: m, by: by, target: filepath.Clean(target)}
	rung, err := u.run(ctx, target, options)
	if log := m.config.Logger; rung > mount.RungNormal || log.Enabled(ctx, slog.LevelDebug) {
		u.log(ctx, log, rung, time.Since(start), err)
	}
	return rung, err
}

// hostUnmount is one unmount by the kernel. Where the mount was not found, the
// rungs act on whatever is topmost.
type hostUnmount struct {
	m      *Mounter
	by     *foreign // whose normal rung it is; nil: the kernel's
	target string
	// found is the mount to be unmounted; nil until it is found. An abandoned
	// call may set it.
	found atomic.Pointer[mounttable.Sighting]
	// blind: the kernel may act on the topmost mount at the time of the only call:
	// no caller can give up and ask which one it was. A call that waits for another
	// one looks all the same.
	blind  bool
	ladder ladder.Ladder
}

func (u *hostUnmount) run(ctx context.Context, target string, options mount.UnmountOptions) (mount.Rung, error) {
	if err := ladder.Refuse(ctx, target); err != nil {
		return mount.RungNone, err
	}
	u.ladder.On = u
	if err := u.ladder.Climb(ctx, options); err != nil {
		return u.ladder.Last, u.fail(ctx, err, options)
	}
	return u.ladder.Last, nil
}

func (u *hostUnmount) log(ctx context.Context, log *slog.Logger, rung mount.Rung, took time.Duration, err error) {
	fstype := ""
	if found := u.found.Load(); found != nil {
		fstype = found.FSType
	}
	level := slog.LevelDebug
	attrs := []slog.Attr{slog.String("target", u.target), slog.String("type", fstype), slog.String("rung", rung.String()), slog.Duration("took", took), slog.Any("error", err)}
	if loss := rung.Loss(fstype); loss != "" {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("loss", loss))
	}
	log.LogAttrs(ctx, level, "unmount", attrs...)
}

// Find implements [ladder.unmounter]: the mount is found when the first call is made,
// or before a wait for an earlier one.
func (u *hostUnmount) Find(ctx context.Context, once bool) {
	u.blind = once && ctx.Done() == nil
}

// findBeforeWaiting finds the mount at the target while another call is under
// way: by the table alone where it can, and else in a goroutine, as a parent of
// the target may lie in a file system that does not answer.
func (u *hostUnmount) findBeforeWaiting(ctx context.Context) {
	if u.found.Load() != nil {
		return
	}
	if s, ok := mounttable.SightingWithoutLinks(u.m.table, u.target); ok {
		u.found.CompareAndSwap(nil, &s)
		return
	}
	u.known(ctx)
}

// known returns the mount, or nil. It looks again where it was not found, as
// the table could not be read.
func (u *hostUnmount) known(ctx context.Context) *mounttable.Sighting {
	if found := u.found.Load(); found != nil {
		return found
	}
	// An error means that the caller gave up; then nothing is known.
	_ = u.m.calls.Do(ctx, callKey{u.target, mount.RungNone}, func() error {
		e, ok, err := u.m.table.At(u.target)
		if err != nil || !ok {
			return err
		}
		if s, ok, err := mounttable.SightingAt(u.m.table, e.Target); err == nil && ok {
			u.found.CompareAndSwap(nil, &s)
		}
		return nil
	})
	return u.found.Load()
}

// Attempt makes a call after an earlier one of the same kind has returned. The
// call is not made any more once ctx has ended.
func (u *hostUnmount) Attempt(ctx context.Context, _ mount.Rung, flags int) (made bool, err error) {
	var g gate
	err = u.m.calls.DoNoticing(ctx, unmountKey(u.target, flags), func() { u.findBeforeWaiting(ctx) }, func() error {
		return u.unmount(&g, flags|unix.UMOUNT_NOFOLLOW)
	})
	abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err)
	return ok && abandoned.Earlier || !g.take(), err
}

// unmount makes the system call, if the mount is still there.
func (u *hostUnmount) unmount(g *gate, flags int) error {
	foreign := u.by != nil && flags&(unix.MNT_FORCE|unix.MNT_DETACH) == 0
	if u.isBlind() && !foreign {
		if done, err := u.unmountBlindly(g, flags); done {
			return err
		}
	}
	parent, err := openPath(unix.AT_FDCWD, filepath.Dir(u.target), unix.O_DIRECTORY)
	switch {
	case err == nil:
		defer unix.Close(parent)
	case !foreign:
		return err
	}
	defer u.m.turns.end(u.target, u.m.turns.take(u.target))
	if foreign {
		return u.by.unmount(u, g, func() (bool, error) { return u.isGone(parent) })
	}
	if gone, err := u.isGone(parent); gone || err != nil {
		return err
	}
	name := u.target
	if name != "/" {
		name = fdPath(parent) + "/" + filepath.Base(name)
	}
	if !g.take() {
		return errGivenUp
	}
	err = u.m.sys.unmount(name, flags)
	if errors.Is(err, unix.EINVAL) {
		if gone, _ := u.isGone(parent); gone {
			return nil // another caller was faster
		}
	}
	return err
}

// isBlind reports whether the call may act on whatever is topmost.
func (u *hostUnmount) isBlind() bool { return u.blind && u.found.Load() == nil }

// unmountBlindly makes the system call by the target's path: there is no mount that the
// path must still lead to. A busy mount is tried again by a descriptor of its parent
// directory.
func (u *hostUnmount) unmountBlindly(g *gate, flags int) (done bool, err error) {
	defer u.m.turns.end(u.target, u.m.turns.take(u.target))
	err = u.m.sys.unmountOnce(u.target, flags)
	if errors.Is(err, unix.EBUSY) {
		return false, nil
	}
	g.take()
	return true, err
}

// isGone reports whether the mount that was found has been unmounted since. It
// is an error if it still is where it was and the target leads elsewhere. If
// none was found yet, it is the one that is there now.
func (u *hostUnmount) isGone(parent int) (bool, error) {
	found := u.found.Load()
	if u.isBlind() {
		return false, nil
	}
	dir, err := os.Readlink(fdPath(parent))
	if err != nil {
		return false, nil // without /proc there is no telling
	}
	at := u.target
	if at != "/" {
		at = path.Join(dir, filepath.Base(u.target))
	}
	now, ok, err := mounttable.SightingAt(u.m.table, at)
	switch {
	case err != nil:
		return false, nil
	case found == nil:
		if ok {
			u.found.CompareAndSwap(nil, &now)
		}
		return false, nil
	case ok && now.IsSame(*found):
		return false, nil
	case at == found.Target:
		return true, nil
	}
	if was, ok, err := mounttable.SightingAt(u.m.table, found.Target); err == nil && ok && was.IsSame(*found) {
		return false, failure.Of(mount.ErrTargetReplaced, fmt.Errorf("what was mounted is at %s, and %s leads to %s by now", found.Target, u.target, at))
	}
	return true, nil
}

// unmountKey is the key of a call for a target, which is clean.
func unmountKey(target string, flags int) callKey {
	switch flags {
	case unix.MNT_FORCE:
		return callKey{target, mount.RungForce}
	case unix.MNT_DETACH:
		return callKey{target, mount.RungLazy}
	}
	return callKey{target, mount.RungNormal}
}

func (u *hostUnmount) OnBlock(ctx context.Context) bool {
	found := u.known(ctx)
	return found == nil || mounttable.OnBlockDevice(found.Entry)
}

func (u *hostUnmount) HasForce(ctx context.Context) bool {
	found := u.known(ctx)
	return found == nil || fstypes.HasForce(found.FSType)
}

// fail makes the *Error of a failed unmount. The kernel says EINVAL both where
// nothing is mounted and where a mount belongs to a more privileged namespace.
func (u *hostUnmount) fail(ctx context.Context, err error, options mount.UnmountOptions) error {
	if given, ok := errors.AsType[*mount.Error](err); ok {
		return given // another mounter's, which may give it to others too
	}
	found := u.found.Load()
	if _, gaveUp := errors.AsType[*blockingcall.AbandonedError](err); found == nil && !gaveUp {
		found = u.known(ctx)
	}
	e := mount.Error{Op: mount.OpUnmount, Target: u.target}
	if found != nil {
		e.Source, e.FSType = found.Source, found.FSType
		if errors.Is(err, unix.EINVAL) {
			err = failure.Of(mount.ErrNotPermitted, err)
			e.Also = []mount.Cause{mount.ErrLocked}
		}
	}
	if options.Holders && found != nil && mount.CauseOf(err) == mount.ErrBusy {
		e.Holders = u.m.holders(ctx, found.Entry)
	}
	return u.m.config.withFacts(mount.Explain(err, e))
}

// Answers implements [ladder.unmounter]. At most one question for each target waits.
func (u *hostUnmount) Answers(ctx context.Context) bool {
	found := u.known(ctx)
	if found == nil {
		return true
	}
	return !ladder.IsSilence(u.m.calls.Do(ctx, callKey{found.Target, rungAsking}, func() error {
		return u.m.sys.ask(found.Target)
	}))
}

// rungAsking keeps questions apart from the calls of all rungs, and from rungHolders.
const rungAsking mount.Rung = -2

// ask asks the file system for its figures, which no cache answers. A link
// that has come to target is not followed.
func (hostCalls) ask(target string) error {
	fd, err := openPath(unix.AT_FDCWD, target, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	return eintr.Do(func() error { return unix.Fstatfs(fd, &st) })
}

// IsOver implements [ladder.unmounter] for NFS, whose file systems have a directory
// below /sys/class/bdi as long as they live.
func (u *hostUnmount) IsOver() bool {
	found := u.found.Load()
	if found == nil || fstypes.Family(found.FSType) != "nfs" {
		return false
	}
	now, ok, err := mounttable.SightingAt(u.m.table, found.Target)
	if err != nil || ok && now.IsSame(*found) {
		return false
	}
	return mounttable.HasLeftSysfs(found.Device)
}

// Enter implements [ladder.unmounter].
func (u *hostUnmount) Enter(h ladder.Headway) (leave func()) {
	found := u.found.Load()
	if found == nil {
		return func() {}
	}
	name := ladder.NameOf(found.Entry)
	u.m.force.Add(name, h, 1)
	return func() { u.m.force.Add(name, h, -1) }
}

// IsShared implements [ladder.unmounter], by this mount namespace. The table has a
// mount that hangs in its end no more.
func (u *hostUnmount) IsShared(h ladder.Headway) bool {
	found := u.found.Load()
	if found == nil {
		return true
	}
	mounts, err := u.m.table.ByDevice(found.Device)
	if err != nil {
		return true
	}
	for _, e := range mounts {
		if name := ladder.NameOf(e); name != ladder.NameOf(found.Entry) && !u.m.force.Reached(name, h) {
			return true
		}
	}
	return false
}

// turnLimit is how long a call keeps others from its target. One that takes
// longer has taken its mount out of the table and hangs after that, or hangs in
// looking the target up, as others would.
const turnLimit = time.Second

// turns has the calls of several rungs for one target look at the table and act
// on what they saw one after the other: of stacked mounts, a second call in
// between would take the one beneath.
type turns struct {
	mu   sync.Mutex
	last map[string]*turn // by target
}

type turn struct {
	began time.Time
	ended chan struct{} // nil: nobody waits
}

// take waits for the turn at target, for turnLimit after the one before began
// at most. It is to be ended.
func (t *turns) take(target string) *turn {
	for {
		mine, before := t.try(target)
		if before == nil {
			return mine
		}
		limit := time.NewTimer(time.Until(before.began.Add(turnLimit)))
		select {
		case <-before.ended:
		case <-limit.C:
		}
		limit.Stop()
	}
}

// try takes the turn, or returns whose it is.
func (t *turns) try(target string) (mine, before *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if before := t.last[target]; before != nil && now.Sub(before.began) < turnLimit {
		if before.ended == nil {
			before.ended = make(chan struct{})
		}
		return nil, before
	}
	if t.last == nil {
		t.last = map[string]*turn{}
	}
	mine = &turn{began: now}
	t.last[target] = mine
	return mine, nil
}

func (t *turns) end(target string, mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mine.ended != nil {
		close(mine.ended)
	}
	if t.last[target] == mine {
		delete(t.last, target)
	}
}

// calls are the system calls of unmounting, so that tests can let them hang.
type calls interface {
	unmount(target string, flags int) error
	unmountOnce(target string, flags int) error
	ask(target string) error
}

type hostCalls struct{}

// unmount is umount2(2), repeated while the mount is busy: a process that this
// one is just starting holds copies of all its descriptors from fork(2) until
// execve(2) closes them. That is waited for, and a fifth of a second more, since
// execve closes them as it ends.
func (h hostCalls) unmount(target string, flags int) error {
	const first = 100 * time.Microsecond
	pause := retry.Pause{First: first, Last: time.Second}
	for {
		err := h.unmountOnce(target, flags)
		if !errors.Is(err, unix.EBUSY) || pause.Due() > 200*time.Millisecond {
			return err
		}
		if pause.Due() == first {
			awaitForks()
		}
		time.Sleep(pause.Next())
	}
}

// unmountOnce is umount2(2).
func (hostCalls) unmountOnce(target string, flags int) error {
	return eintr.Do(func() error { return unix.Unmount(target, flags) })
}

// awaitForks waits, for a second at most, for the processes that are being
// started to reach execve(2). It may hang there: their program's file system is
// any.
func awaitForks() {
	none := make(chan struct{})
	go func() {
		syscall.ForkLock.RLock() // held by package syscall from fork to execve
		close(none)
		syscall.ForkLock.RUnlock()
	}()
	limit := time.NewTimer(time.Second)
	defer limit.Stop()
	select {
	case <-none:
	case <-limit.C:
	}
}
