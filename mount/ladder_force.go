package mount

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/flight"
)

// What says that the rung of force was not taken.
var (
	errShared  = errors.New("other mounts show the file system too, or may, and forcing would make their requests fail")
	errAnswers = errors.New("the server or daemon answers, and forcing would make its requests fail")
)

// caution is what forcing again and again goes by.
type caution struct {
	patience time.Duration // with a file system that has answered last
	hangs    bool          // a call has waited for longer, which says enough
	silent   bool          // no answer came last
}

// force forces, unless somebody would suffer: the kernel makes the requests of
// all mounts of a file system fail, a living server's too.
func (l *ladder) force(ctx context.Context, silent bool) error {
	switch {
	case l.on.isShared():
		return errShared
	case !silent:
		return errAnswers
	}
	return l.try(ctx, RungForce, unix.MNT_FORCE)
}

// keepForcing forces again and again until stop is called or ctx ends: NFS
// gives up what waits for the server at that moment, and then sends the next of
// what was not yet written, which a process that wrote it waits for, even killed.
func (l *ladder) keepForcing(ctx context.Context, c caution) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for pause := busyFirst * 3 / 2; ; pause = min(2*pause, busyLast) { // between the normal ones
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
			if l.on.isShared() || !l.isSilent(ctx, &c, pause) || l.on.isShared() {
				continue
			}
			// Its error is that of the normal unmount beside it.
			if made, _ := l.on.attempt(ctx, RungForce, unix.MNT_FORCE); made {
				l.forced.Store(true)
			}
		}
	}()
	return func() { cancel(); <-ended }
}

// isSilent asks once more. The question uses the mount until the answer, or
// until it is forced: after a silence the wait is short.
func (l *ladder) isSilent(ctx context.Context, c *caution, pause time.Duration) bool {
	if c.hangs {
		return true
	}
	limit := c.patience
	if c.silent {
		limit = min(limit, pause/2)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c.silent = !l.on.answers(ctx)
	return c.silent
}

// listen asks the file system something when half of the time before force is
// over. Silent tells, when the whole is, whether no answer came; a file system
// that must not be forced anyway is not asked, as that uses it.
func (l *ladder) listen(ctx context.Context, half time.Duration) (silent func() bool) {
	heard := make(chan bool, 1)
	go func() {
		select {
		case <-time.After(half):
			heard <- !l.on.hasForce(ctx) || l.on.isShared() || l.on.answers(ctx)
		case <-ctx.Done():
			heard <- true
		}
	}()
	return func() bool { return !<-heard }
}

// answers implements [unmounter]. At most one question for each target waits.
func (u *hostUnmount) answers(ctx context.Context) bool {
	found := u.known(ctx)
	if found == nil {
		return true
	}
	return !isSilence(u.m.calls.Do(ctx, callKey{found.Target, rungAsking}, func() error {
		return u.m.sys.ask(found.Target)
	}))
}

// rungAsking keeps questions apart from the calls of all rungs.
const rungAsking Rung = -1

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

// isSilence tells no answer, and what the client of a file system says for it,
// from answers, refusals among them.
func isSilence(err error) bool {
	if _, ok := errors.AsType[*flight.AbandonedError](err); ok {
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

// answers implements [unmounter]: the fake answers unless a fault keeps it from
// that.
func (u *fakeUnmount) answers(ctx context.Context) bool {
	return !isSilence(u.fake.do(ctx, newCall(OpStatfs, RungNone, Request{Target: u.target}), func() error { return nil }))
}
