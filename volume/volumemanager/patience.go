package volumemanager

import (
	"context"
	"sync"
	"time"
)

// patience is a context with a deadline that can be put off: a set-up that
// makes progress is not given up, however long it takes.
type patience struct {
	context.Context
	cancel context.CancelCauseFunc
	limit  time.Duration
	timer  *time.Timer

	mu       sync.Mutex
	deadline time.Time
}

func newPatience(parent context.Context, limit time.Duration) *patience {
	p := &patience{limit: limit, deadline: time.Now().Add(limit)}
	p.Context, p.cancel = context.WithCancelCause(parent)
	p.timer = time.AfterFunc(limit, func() { p.cancel(context.DeadlineExceeded) })
	return p
}

// putOff gives the whole time once more, from now on.
func (p *patience) putOff() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = time.Now().Add(p.limit)
	p.timer.Reset(p.limit)
}

// end frees what the context uses. It must not be put off afterwards.
func (p *patience) end() {
	p.timer.Stop()
	p.cancel(context.Canceled)
}

// Deadline is when the context ends, unless it is put off.
func (p *patience) Deadline() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deadline, true
}

// Err is [context.DeadlineExceeded] once the deadline has passed, as of other
// contexts that have one.
func (p *patience) Err() error {
	err := p.Context.Err()
	if err != nil && context.Cause(p.Context) == context.DeadlineExceeded {
		return context.DeadlineExceeded
	}
	return err
}
