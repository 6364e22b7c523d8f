package progress

import (
	"context"
	"sync"
	"time"
)

// Patience is a context with a deadline that can be put off: a set-up that
// makes progress is not given up, however long it takes.
type Patience struct {
	context.Context
	cancel context.CancelCauseFunc
	limit  time.Duration
	timer  *time.Timer

	mu       sync.Mutex
	deadline time.Time
}

// NewPatience returns a context that ends after the limit, or with its parent.
func NewPatience(parent context.Context, limit time.Duration) *Patience {
	p := &Patience{limit: limit, deadline: time.Now().Add(limit)}
	p.Context, p.cancel = context.WithCancelCause(parent)
	p.timer = time.AfterFunc(limit, func() { p.cancel(context.DeadlineExceeded) })
	return p
}

// PutOff gives the whole time once more, from now on.
func (p *Patience) PutOff() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = time.Now().Add(p.limit)
	p.timer.Reset(p.limit)
}

// End frees what the context uses. It must not be put off afterwards.
func (p *Patience) End() {
	p.timer.Stop()
	p.cancel(context.Canceled)
}

// Deadline is when the context ends, unless it is put off.
func (p *Patience) Deadline() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deadline, true
}

// Err is [context.DeadlineExceeded] once the deadline has passed, as of other
// contexts that have one.
func (p *Patience) Err() error {
	err := p.Context.Err()
	if err != nil && context.Cause(p.Context) == context.DeadlineExceeded {
		return context.DeadlineExceeded
	}
	return err
}
