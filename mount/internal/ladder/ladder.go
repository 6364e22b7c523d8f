// Package ladder is the order of attempts at an unmount, from normal to forced to lazy,
// which the host and the fake have in common.
package ladder

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/retry"
)

const (
	// busyFirst and busyLast bound the pauses between attempts at a busy
	// mount while a higher rung is still to come. The kernel does not tell
	// when a mount ceases to be busy.
	busyFirst = 50 * time.Millisecond
	busyLast  = time.Second
)

// errNotLazy says that the last rung was not taken.
var errNotLazy = errors.New("a file system that is, or may be, on a block device is not detached lazily")

// Ladder is one unmount on its way through the rungs. It is the same for the
// host and for the fake, which differ in what they do on each.
type Ladder struct {
	On unmounter
	// last is the last rung that was tried.
	Last mount.Rung
	// hung says that a call was given up while it, or one before it, was still
	// running.
	hung bool
	// hungFor is how long the last such call was waited for.
	hungFor time.Duration
	// forced says that a repeated forcing was made.
	forced atomic.Bool
}

// unmounter makes the calls of one unmount. All of them act on the mount that
// was found at the start; where it is gone already that is success.
type unmounter interface {
	// find finds the mount that is to be unmounted, if it can. With once only one
	// attempt will be made: then only a call that comes after another one for the
	// same target has to know it.
	Find(ctx context.Context, once bool)
	// Attempt makes one umount2(2) call for rung and tells whether it was
	// made, or may have been.
	Attempt(ctx context.Context, rung mount.Rung, flags int) (made bool, err error)
	// OnBlock tells whether the mount is on a block device, or may be.
	OnBlock(ctx context.Context) bool
	// HasForce tells whether the mount's type does anything when forced, or
	// may.
	HasForce(ctx context.Context) bool
	// Enter says how far the ladder has got with the mount, until leave is called:
	// another ladder that forces the file system need not spare this mount then.
	Enter(Headway) (leave func())
	// IsShared tells whether further mounts show the file system, or may, that no
	// ladder is unmounting at this step: forcing would hit them too.
	IsShared(Headway) bool
	// Answers asks the mount's file system something and tells whether its
	// server, or daemon, answers before ctx ends.
	Answers(ctx context.Context) bool
	// IsOver tells whether the mount that was found is gone, and its file system
	// too, whatever still hangs.
	IsOver() bool
}

// Refuse refuses, as a certain *[mount.Error], arguments that no unmount can
// begin with.
func Refuse(ctx context.Context, target string) error {
	if !filepath.IsAbs(target) {
		err := failure.Of(mount.ErrNoTarget, fmt.Errorf("the mount point %q is not an absolute path", target))
		return mount.UnmountFailed(target, err)
	}
	if ctx.Err() != nil {
		return mount.Certain(mount.UnmountFailed(target, Ended(ctx)))
	}
	return nil
}

// Climb tries the rungs in turn, until nothing is left to be unmounted.
func (l *Ladder) Climb(ctx context.Context, o mount.UnmountOptions) error {
	if o.ForceAfter <= 0 && o.LazyAfter <= 0 {
		return l.rungs(ctx, o)
	}
	watched, stop := l.watch(ctx)
	defer stop()
	err := l.rungs(watched, o)
	if err != nil && context.Cause(watched) == errOver {
		return nil
	}
	return err
}

func (l *Ladder) rungs(ctx context.Context, o mount.UnmountOptions) error {
	start := time.Now()
	until := func(after time.Duration) (context.Context, context.CancelFunc) {
		if after <= 0 {
			return ctx, func() {} // the usual case, and cheap
		}
		return context.WithDeadline(ctx, start.Add(after))
	}
	toLazy := o.LazyAfter > 0
	toForce := o.ForceAfter > 0 && (!toLazy || o.ForceAfter < o.LazyAfter)
	first := o.LazyAfter
	if toForce {
		first = o.ForceAfter
	}

	normalCtx, cancel := until(first)
	defer cancel()
	l.On.Find(normalCtx, !toForce && !toLazy)
	var told func() heard
	if toForce {
		var leave func()
		told, leave = l.listen(normalCtx, o.ForceAfter/2)
		defer leave()
	}
	err := l.normal(normalCtx, normalCtx, toForce || toLazy)
	if toForce && goesOn(ctx, err) {
		forceCtx, cancel := until(o.LazyAfter)
		defer cancel()
		err = l.withForce(forceCtx, o, start, told)
	}
	if !toLazy || !goesOn(ctx, err) {
		return err
	}
	return l.lazy(ctx)
}

// normal unmounts normally; with repeat, again and again until the context again
// ends.
func (l *Ladder) normal(ctx, again context.Context, repeat bool) error {
	pause := retry.Pause{First: busyFirst, Last: busyLast}
	for {
		rung := max(l.Last, mount.RungNormal)
		if l.forced.Load() {
			rung = max(rung, mount.RungForce)
		}
		err := l.try(ctx, rung, 0)
		if !repeat || !goesOn(ctx, err) {
			return err
		}
		if !pause.Wait(again) {
			return err
		}
	}
}

// lazy detaches the mount, unless it is on a block device; then a normal
// unmount that still hangs is waited for.
func (l *Ladder) lazy(ctx context.Context) error {
	if !l.On.OnBlock(ctx) {
		err := l.try(ctx, mount.RungLazy, unix.MNT_DETACH)
		if err == nil && l.hung {
			// A normal unmount takes the mount out of sight first, and then hangs in
			// writing data: detaching it leaves the same.
			l.Last = mount.RungLazy
		}
		return err
	}
	if err := l.normal(ctx, ctx, false); err != nil {
		return fmt.Errorf("%w (%w)", err, errNotLazy)
	}
	return nil
}

// try makes one call.
func (l *Ladder) try(ctx context.Context, rung mount.Rung, flags int) error {
	if ctx.Err() != nil {
		return &blockingcall.AbandonedError{Earlier: l.hung, Err: context.Cause(ctx)}
	}
	start := time.Now()
	made, err := l.On.Attempt(ctx, rung, flags)
	if made {
		l.Last = rung
	}
	if _, ok := errors.AsType[*blockingcall.AbandonedError](err); ok {
		l.hung, l.hungFor = true, time.Since(start)
	}
	return err
}

// goesOn reports whether a further attempt may help against err.
func goesOn(ctx context.Context, err error) bool {
	return ctx.Err() == nil && higherRungHelps(err)
}

// higherRungHelps tells errors of a mount that exists and will not go from
// those that say there is nothing to unmount or no right to.
func higherRungHelps(err error) bool {
	if err == nil {
		return false
	}
	if failure.HasCause(err) {
		return false // the target leads elsewhere by now
	}
	for _, final := range []error{unix.EINVAL, unix.ENOENT, unix.ENOTDIR, unix.EPERM, unix.EACCES, unix.ELOOP, unix.ENAMETOOLONG, unix.ENOSYS} {
		if errors.Is(err, final) {
			return false
		}
	}
	return true
}

// Ended is the error of a context that has ended, with a cause of the caller's
// own or not.
func Ended(ctx context.Context) error {
	cause := mount.ErrCanceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		cause = mount.ErrTimedOut
	}
	return failure.Of(cause, context.Cause(ctx))
}

// overEvery is how often a ladder looks whether a call that hangs has done its
// work. The kernel does not tell when a file system is gone.
const overEvery = time.Second

// errOver says that the file system is gone while the call still hangs.
var errOver = errors.New("the file system is gone")

// watch returns a context that ends with errOver when a mount and its file
// system are gone although the call that unmounts hangs: NFSv4 says good-bye to
// its server at the very end, and waits for the answer for minutes.
func (l *Ladder) watch(ctx context.Context) (watched context.Context, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	go func() {
		ticker := time.NewTicker(overEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-watched.Done():
				return
			}
			if l.On.IsOver() {
				cancel(errOver)
				return
			}
		}
	}()
	return watched, func() { cancel(nil) }
}

// Headway is how far a ladder has got with a mount.
type Headway int

const (
	// underWay: half of the time before force is over.
	underWay Headway = iota
	// MayBeForced: all of it is.
	MayBeForced
	headways
	// beyondAll is further than any ladder gets.
	beyondAll = headways
)

// Forcing has the mounts that ladders have got somewhere with. Of several mounts
// of one file system, which all are to go, none spares the others.
type Forcing struct {
	mu     sync.Mutex
	mounts map[Name]*Ladders
}

// Ladders counts those that are at a mount.
type Ladders [headways]int

// Reached reports whether one has got as far.
func (l *Ladders) Reached(h Headway) bool {
	return l != nil && slices.ContainsFunc(l[h:], func(n int) bool { return n > 0 })
}

// Name is a mount's while a ladder is at it.
type Name struct {
	id     int
	target string
}

// NameOf names a mount.
func NameOf(e mount.Entry) Name { return Name{e.ID, e.Target} }

// Add counts n unmounts that have got to h with a mount; n is negative for those that end.
func (f *Forcing) Add(name Name, h Headway, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mounts == nil {
		f.mounts = map[Name]*Ladders{}
	}
	if f.mounts[name] == nil {
		f.mounts[name] = new(Ladders)
	}
	if f.mounts[name][h] += n; *f.mounts[name] == (Ladders{}) {
		delete(f.mounts, name)
	}
}

// Len returns how many mounts ladders are at.
func (f *Forcing) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.mounts)
}

// Reached reports whether an unmount of the mount has got to h.
func (f *Forcing) Reached(name Name, h Headway) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mounts[name].Reached(h)
}
