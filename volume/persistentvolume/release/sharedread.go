package release

import (
	"context"
	"sync"
	"time"
)

// readPatience is how long a read of the API waits for the one before it: one
// that is never answered holds up no other for good.
const readPatience = 10 * time.Second

// sharedReads are reads of all users of data. A call is answered by a read that begins
// after it; calls during another read share the next one.
type sharedReads struct {
	mu   sync.Mutex
	last <-chan struct{} // closed when the last that was begun has ended; nil before the first
	next *sharedRead     // that is not begun yet; nil: no call has asked for it
}

type sharedRead struct {
	done chan struct{} // closed when the rest is set
	all  *usage
	err  error
	// givenUp says that its caller's context ended, which is no other's.
	givenUp bool
}

// share returns what read returns, called by this caller or another, after the
// call of share.
func (l *sharedReads) share(ctx context.Context, read func(context.Context) (*usage, error)) (*usage, error) {
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

// join returns the next read, and whether the caller is to lead it, after the one
// before has ended.
func (l *sharedReads) join() (mine *sharedRead, before <-chan struct{}, leads bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next != nil {
		return l.next, nil, false
	}
	l.next = &sharedRead{done: make(chan struct{})}
	return l.next, l.last, true
}

// lead reads once the read before has ended.
func (l *sharedReads) lead(ctx context.Context, mine *sharedRead, before <-chan struct{}, read func(context.Context) (*usage, error)) {
	defer close(mine.done)
	if before != nil {
		patience := time.NewTimer(readPatience)
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
