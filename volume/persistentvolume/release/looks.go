package release

import (
	"context"
	"sync"
	"time"
)

// lookPatience is how long a look at the API waits for the one before it: one
// that is never answered holds up no other for good.
const lookPatience = 10 * time.Second

// looks are looks at all users of data. A call is answered by a look that begins
// after it; calls during another look share the next one.
type looks struct {
	mu   sync.Mutex
	last <-chan struct{} // closed when the last that was begun has ended; nil before the first
	next *look           // that is not begun yet; nil: no call has asked for it
}

type look struct {
	done chan struct{} // closed when the rest is set
	all  *usage
	err  error
	// givenUp says that its caller's context ended, which is no other's.
	givenUp bool
}

// share returns what read returns, called by this caller or another, after the
// call of share.
func (l *looks) share(ctx context.Context, read func(context.Context) (*usage, error)) (*usage, error) {
	for {
		mine, before, leads := l.join()
		if leads {
			l.lead(ctx, mine, before, read)
		}
		select {
		case <-mine.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if !mine.givenUp || ctx.Err() != nil {
			return mine.all, mine.err
		}
	}
}

// join returns the next look, and whether the caller is to lead it, after the one
// before has ended.
func (l *looks) join() (mine *look, before <-chan struct{}, leads bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next != nil {
		return l.next, nil, false
	}
	l.next = &look{done: make(chan struct{})}
	return l.next, l.last, true
}

// lead takes a look once the one before has ended.
func (l *looks) lead(ctx context.Context, mine *look, before <-chan struct{}, read func(context.Context) (*usage, error)) {
	defer close(mine.done)
	if before != nil {
		patience := time.NewTimer(lookPatience)
		defer patience.Stop()
		select {
		case <-before:
		case <-patience.C:
		case <-ctx.Done():
		}
	}
	l.mu.Lock()
	l.last, l.next = mine.done, nil // from here on it answers no new call
	l.mu.Unlock()
	if ctx.Err() == nil {
		mine.all, mine.err = read(ctx)
	} else {
		mine.err = context.Cause(ctx)
	}
	mine.givenUp = mine.err != nil && ctx.Err() != nil
}
