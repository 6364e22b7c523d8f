package progress

import (
	"context"
	"sync"
	"time"

	"github.com/podvol/podvol/util/deadline"
)

// Patience is a context that ends after a time that can be put off: a set-up that makes
// progress is not given up, however long it takes. So it has no Deadline, which must not
// change: a context with a limit of its own that is derived from it would lose that, where
// the Deadline comes sooner and is put off then. [deadline.Of] says when it ends as things
// are.
//
// It ends with its parent at once. Contexts that were derived from it follow a moment later.
type Patience struct {
	parent context.Context
	// inner ends when this does, at the end of the time by cancel.
	inner  context.Context
	cancel context.CancelCauseFunc
	limit  time.Duration
	timer  *time.Timer

	mu   sync.Mutex
	ends time.Time
}

// NewPatience returns a context that ends after the limit, or with its parent.
func NewPatience(parent context.Context, limit time.Duration) *Patience {
	p := &Patience{limit: limit, ends: time.Now().Add(limit)}
	p.parent = deadline.With(parent, p.end)
	p.inner, p.cancel = context.WithCancelCause(p.parent)
	p.timer = time.AfterFunc(limit, func() { p.cancel(context.DeadlineExceeded) })
	return p
}

func (p *Patience) end() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ends
}

// PutOff gives the whole time once more, from now on.
func (p *Patience) PutOff() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends = time.Now().Add(p.limit)
	p.timer.Reset(p.limit)
}

// End frees what the context uses. It must not be put off afterwards.
func (p *Patience) End() {
	p.timer.Stop()
	p.cancel(context.Canceled)
}

// Deadline is that of the parent.
func (p *Patience) Deadline() (time.Time, bool) { return p.parent.Deadline() }

// Done is closed when the context has ended.
func (p *Patience) Done() <-chan struct{} { return p.inner.Done() }

// Err is [context.DeadlineExceeded] once the time is over, as of contexts with a
// deadline. Contexts that are derived from it have the same error.
func (p *Patience) Err() error {
	err := p.inner.Err()
	if err != nil && context.Cause(p.inner) == context.DeadlineExceeded {
		return context.DeadlineExceeded
	}
	return err
}

// Value is that of the parent, or for [deadline.Of]. It is not that of inner: derived contexts
// would find inner by it, and take its error.
func (p *Patience) Value(key any) any { return p.parent.Value(key) }
