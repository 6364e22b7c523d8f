// Package lifecycle knows how far a manager is: whether Run was called, knows the records,
// and has ended. It knows nothing of volumes.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

var (
	// ErrStopped says that the manager's Run has ended.
	ErrStopped = errors.New("the volume manager has stopped")
	// ErrNotRun says that Run was not called, so that nothing is mounted.
	ErrNotRun = errors.New("the volume manager does not run: call Run first, in a goroutine of its own")
	// ErrAlreadyRun says that Run was called before; a manager runs once.
	ErrAlreadyRun = errors.New("the volume manager runs only once")
)

// Lifecycle is how far a manager's Run is. Its methods may be called from several goroutines.
type Lifecycle struct {
	began   chan struct{} // closed when Run is called
	ready   chan struct{} // closed when the records have been read
	stopped chan struct{} // closed when Run ends

	mu      sync.Mutex     // guards the closing of began and of stopped, waited, and additions to running
	running sync.WaitGroup // work beside the queue
	waited  bool           // nothing is added to running any more
}

// New returns the lifecycle of a manager whose Run was not called.
func New() *Lifecycle {
	return &Lifecycle{began: make(chan struct{}), ready: make(chan struct{}), stopped: make(chan struct{})}
}

func isClosed(event <-chan struct{}) bool {
	select {
	case <-event:
		return true
	default:
		return false
	}
}

// Begin notes that Run was called, and reports whether it was the first time.
func (l *Lifecycle) Begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.began) {
		return false
	}
	close(l.began)
	return true
}

// Stop lets nothing new begin, and reports whether it did before.
func (l *Lifecycle) Stop() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.stopped) {
		return false
	}
	close(l.stopped)
	return true
}

func (l *Lifecycle) IsStopped() bool { return isClosed(l.stopped) }

// HasRecovered reports whether it is known what the records say.
func (l *Lifecycle) HasRecovered() bool { return isClosed(l.ready) }

// Recovered notes that it is known what the records say. It is called once.
func (l *Lifecycle) Recovered() { close(l.ready) }

// Stopped is closed when Run ends.
func (l *Lifecycle) Stopped() <-chan struct{} { return l.stopped }

// Go runs f in a goroutine that a later [Lifecycle.Wait] waits for.
func (l *Lifecycle) Go(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waited {
		go f()
		return
	}
	l.running.Go(f)
}

// Wait waits for the work beside the queue, after which the root is unlocked. It is called
// after [Lifecycle.Stop].
func (l *Lifecycle) Wait() {
	l.mu.Lock()
	l.waited = true
	l.mu.Unlock()
	l.running.Wait()
}

// KeepRoot keeps the root locked, after the manager has stopped, until done is
// called. After that the error is [ErrStopped].
func (l *Lifecycle) KeepRoot() (done func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.IsStopped() {
		return nil, ErrStopped
	}
	l.running.Add(1)
	return l.running.Done, nil
}

// WaitForRecovery waits until it is known what the records say. It
// returns [ErrStopped] when Run has ended, and the cause of ctx's end when that
// comes first. If Run was not called by then, the error matches [ErrNotRun] too.
func (l *Lifecycle) WaitForRecovery(ctx context.Context) error {
	if l.IsStopped() {
		return ErrStopped
	}
	if ctx.Err() != nil {
		return l.notRecovered(ctx)
	}
	select {
	case <-l.ready:
		return nil
	case <-l.stopped:
		return ErrStopped
	case <-ctx.Done():
		return l.notRecovered(ctx)
	}
}

// notRecovered is why a wait for the recovery has ended with ctx.
func (l *Lifecycle) notRecovered(ctx context.Context) error {
	if isClosed(l.began) {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w (%w)", ErrNotRun, context.Cause(ctx))
}

// startPatience is how long Run may take to begin, which is usually called in
// another goroutine right before or after the call that needs it.
const startPatience = 30 * time.Second

// WaitForRun is WaitForRecovery for calls that would never end without
// Run: that it is not called within [startPatience] is [ErrNotRun].
func (l *Lifecycle) WaitForRun(ctx context.Context) error {
	patience := time.NewTimer(startPatience)
	defer patience.Stop()
	select {
	case <-l.began:
	case <-ctx.Done():
	case <-patience.C:
		return ErrNotRun
	}
	return l.WaitForRecovery(ctx)
}
