package ladder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/retry"
)

// What says that the rung of force was not taken.
var (
	errShared  = errors.New("other mounts show the file system too, or may, and forcing would make their requests fail")
	errAnswers = errors.New("the server or daemon answers, and forcing would make its requests fail")
	ErrUnasked = errors.New("the server or daemon was not asked yet whether it answers, for the sake of other mounts of the file system")
)

// heard is the last news of a server or daemon.
type heard int

const (
	unasked heard = iota
	answered
	silence
)

// caution is what forcing again and again goes by.
type caution struct {
	patience time.Duration // with a file system that has answered last
	limit    time.Duration // of the next question after a silence
	silent   bool          // no answer came last
}

// newCaution begins after an answer, or after a silence.
func newCaution(patience time.Duration, silent bool) *caution {
	return &caution{patience: patience, limit: busyFirst, silent: silent}
}

// withForce forces and unmounts normally, both again and again until ctx ends
// if a lazy unmount is to come then. Without one they are repeated only if
// further mounts of the file system are on their way too, which may not be
// forced as yet, for as long as it took to come here.
func (l *Ladder) withForce(ctx context.Context, o mount.UnmountOptions, start time.Time, told func() heard) error {
	toLazy := o.LazyAfter > 0
	if !l.On.HasForce(ctx) {
		return l.normal(ctx, ctx, toLazy)
	}
	defer l.On.Enter(MayBeForced)()
	patience := o.ForceAfter / 2
	heard := told()
	if l.hung && l.hungFor >= patience {
		heard = silence // a call has waited for longer, which says enough
	}
	again, repeat := ctx, toLazy
	if !toLazy && heard != answered && l.On.IsShared(beyondAll) && !l.On.IsShared(underWay) {
		var cancel context.CancelFunc
		again, cancel = context.WithDeadline(ctx, start.Add(2*o.ForceAfter))
		defer cancel()
		repeat = true
	}
	forceErr := l.force(ctx, heard)
	stop := func() error { return forceErr }
	if repeat {
		stop = l.keepForcing(again, newCaution(patience, heard == silence), forceErr)
	}
	err := l.normal(ctx, again, repeat)
	forceErr = stop()
	if l.forced.Load() {
		l.Last = max(l.Last, mount.RungForce)
	}
	if err != nil && forceErr != nil && !toLazy {
		err = fmt.Errorf("%w (the forced unmount: %v)", err, forceErr)
	}
	return err
}

// force forces, unless another mount would suffer: the kernel makes the requests of
// all mounts of a file system fail, a living server's too.
func (l *Ladder) force(ctx context.Context, heard heard) error {
	switch {
	case l.On.IsShared(MayBeForced):
		return errShared
	case heard == unasked:
		return ErrUnasked
	case heard == answered:
		return errAnswers
	}
	return l.try(ctx, mount.RungForce, unix.MNT_FORCE)
}

// keepForcing forces again and again until stop is called or ctx ends: NFS gives
// up the requests that wait for the server at that moment. Then it sends the next
// unwritten data, and their writer waits for it, even killed. Stop returns what
// came of the last attempt; before the first that is err.
func (l *Ladder) keepForcing(ctx context.Context, c *caution, err error) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pause := retry.Pause{First: busyFirst * 3 / 2, Last: busyLast} // between the normal ones
		for pause.Wait(ctx) {
			if now := l.forceAgain(ctx, c); ctx.Err() == nil {
				err = now
			}
		}
	}()
	return func() error { cancel(); <-ended; return err }
}

func (l *Ladder) forceAgain(ctx context.Context, c *caution) error {
	switch {
	case l.On.IsShared(MayBeForced):
		return errShared
	case !l.isSilent(ctx, c):
		return errAnswers
	case l.On.IsShared(MayBeForced):
		return errShared
	}
	made, err := l.On.Attempt(ctx, mount.RungForce, unix.MNT_FORCE)
	if made {
		l.forced.Store(true)
	}
	return err
}

// isSilent asks once more. The question uses the mount until the answer, or
// until it is forced: after a silence the wait is short at first, and longer
// each time, as a server that is back may be slow.
func (l *Ladder) isSilent(ctx context.Context, c *caution) bool {
	limit := c.patience
	if c.silent {
		limit = min(limit, c.limit)
		c.limit = 2 * limit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if c.silent = !l.On.Answers(ctx); !c.silent {
		c.limit = busyFirst
	}
	return c.silent
}

// listen enters the mount as under way when half of the time before force is
// over, until leave is called, and asks the file system something. Told tells,
// when the whole is, what came of it; a file system that must not be forced
// anyway is not asked, as that uses it.
func (l *Ladder) listen(ctx context.Context, half time.Duration) (told func() heard, leave func()) {
	ctx, cancel := context.WithCancel(ctx)
	said, left, ended := make(chan heard, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-time.After(half):
			defer l.On.Enter(underWay)()
			said <- l.hear(ctx)
			<-left
		case <-ctx.Done():
			said <- unasked
		}
	}()
	return func() heard { return <-said }, func() { cancel(); close(left); <-ended }
}

func (l *Ladder) hear(ctx context.Context) heard {
	switch {
	case !l.On.HasForce(ctx) || l.On.IsShared(underWay):
		return unasked
	case l.On.Answers(ctx):
		return answered
	}
	return silence
}

// IsSilence tells no answer, and what the client of a file system says for it,
// from answers, refusals among them.
func IsSilence(err error) bool {
	if _, ok := errors.AsType[*blockingcall.AbandonedError](err); ok {
		return true
	}
	for _, silence := range []error{
		unix.EIO, unix.ETIMEDOUT, unix.ENOTCONN, unix.ECONNREFUSED, unix.ECONNRESET, unix.ECONNABORTED,
		unix.EPIPE, unix.EHOSTDOWN, unix.EHOSTUNREACH, unix.ENETDOWN, unix.ENETUNREACH,
	} {
		if errors.Is(err, silence) {
			return true
		}
	}
	return false
}
