package work

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/podvol/podvol/util/clocks"
)

// Result is the outcome of reconciling a key. The zero Result: there is nothing to do until
// the key is enqueued again.
type Result struct {
	// After is how long to wait before the key is reconciled again, unless it is enqueued
	// before; 0 without an At and a Reason: for ever.
	After time.Duration
	// At, where After is 0, is the time at which it is reconciled again, by one of the
	// machine's clocks: up to [ClockCheck] late if the machine sleeps meanwhile, or its wall
	// clock is set. Zero: there is none.
	At time.Time
	// Reason is why. With a Reason, no After and no At, the attempt has failed: the queue
	// counts it, and waits for a pause that grows with each failure in a row ([Backoff]).
	Reason error
}

// queuePause is the usual pause after a key's first failure: as in Kubernetes'
// controllers.
const queuePause = 10 * time.Millisecond

// ClockCheck is the time between two checks whether the time of a key has come
// ([Result].At). One timer is for all keys, and there is none while no key waits for a time.
const ClockCheck = time.Minute

// conflictsInARow is how often a key that meets conflicts counts as active while
// it waits: they are how a controller learns that its cache is behind.
const conflictsInARow = 5

// Config is what a [Queue] is made of.
type Config[K comparable] struct {
	// Reconcile does the next steps for the object of a key. One goroutine at a time calls
	// it for a key. It may call the queue's methods except Wait.
	Reconcile func(ctx context.Context, key K) Result
	// Refresh is Reconcile for a key that was only enqueued by [Queue.EnqueueIfChanged]: it
	// reads the object, and enqueues the key if the object has changed. nil: Reconcile.
	Refresh func(ctx context.Context, key K) Result
	// Workers is how many keys are reconciled at the same time at most; 0: all.
	Workers int
	// Activity counts the keys that are queued or reconciled. A key that waits after an
	// error that matches Conflict counts too, the first few times. nil: nothing is counted.
	Activity *Activity
	// FirstPause is the pause after a key's first failure; 0: 10 ms.
	FirstPause time.Duration
	// Conflict is matched by an error that says that another client was faster; nil: by none.
	Conflict error
}

// Queue is a queue of the keys to reconcile. One goroutine at a time reconciles a key, as soon
// as one is free; without keys there is none. A key that is enqueued while it waits is
// reconciled at once. The methods may be called from several goroutines.
type Queue[K comparable] struct {
	Config[K]

	mu sync.Mutex
	// ctx is nil until the queue is started; work ends with it. It is kept since the
	// methods that add a key start the goroutine that works on it.
	ctx     context.Context
	ready   []*keyState[K]
	states  map[K]*keyState[K]
	started int // goroutines
	working int // the ones with a key
	stopped bool
	running sync.WaitGroup
	clock   *time.Timer // until the next check of the clocks; nil: no key waits for a time
}

type keyState[K comparable] struct {
	key             K
	queued, running bool
	reconcile       bool // it is queued for Reconcile; else for Refresh
	again           bool // it was enqueued after a pause while it ran; no effect if that run fails
	backoff         Backoff
	retry           *time.Timer // nil unless it waits to be reconciled again
	at              time.Time   // for which it waits, if it does; zero: none
	// conflict says that it failed because another client was faster; counted that
	// it is active all the same while it waits.
	conflict, counted bool
}

// NewQueue returns a queue that begins with [Queue.Start].
func NewQueue[K comparable](config Config[K]) *Queue[K] {
	if config.Activity == nil {
		config.Activity = new(Activity)
	}
	return &Queue[K]{Config: config, states: make(map[K]*keyState[K])}
}

// Start begins to work on the keys in the queue, until ctx ends. Then the queue forgets its
// keys, and every key that is enqueued later.
func (q *Queue[K]) Start(ctx context.Context) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ctx = ctx
	q.dispatch()
	context.AfterFunc(ctx, q.stop)
}

// Wait returns when nothing runs any more, after the context of Start ended.
func (q *Queue[K]) Wait() {
	q.stop()
	q.running.Wait()
}

// Ended reports whether the context of Start has ended, or Wait was called. Nothing being
// active ([Activity.Idle]) does not say then that all is done.
func (q *Queue[K]) Ended() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stopped || q.ctx != nil && q.ctx.Err() != nil
}

// stop forgets all keys. A key that is worked on is forgotten when that has ended.
func (q *Queue[K]) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true // from here on nothing begins
	q.ready = nil
	if q.clock != nil {
		q.clock.Stop()
		q.clock = nil
	}
	for key, s := range q.states {
		if s.retry != nil {
			s.retry.Stop()
			s.retry = nil
		}
		if s.running {
			s.queued = false
			continue
		}
		if s.queued || s.counted {
			q.Activity.Add(-1)
		}
		delete(q.states, key)
	}
}

// Enqueue has a key reconciled, and ends its pause. It never blocks.
func (q *Queue[K]) Enqueue(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return
	}
	s := q.state(key)
	s.reconcile = true
	if s.retry != nil {
		s.retry.Stop()
		s.retry = nil
	}
	q.enqueue(s)
}

// EnqueueAfterPause is Enqueue without an end of the pause after a failure, also after one of
// the attempt that runs now. Two keys that block and enqueue each other are so retried with
// a growing pause. It never blocks.
func (q *Queue[K]) EnqueueAfterPause(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return
	}
	s := q.state(key)
	switch {
	case s.retry != nil:
	case s.running:
		s.again = true
	default:
		s.reconcile = true
		q.enqueue(s)
	}
}

// EnqueueIfChanged has a key refreshed ([Config].Refresh), and reconciled only if its object
// has changed: a controller causes most of the events that it sees. It never blocks.
func (q *Queue[K]) EnqueueIfChanged(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.stopped {
		q.enqueue(q.state(key))
	}
}

// Forget ends the wait of a key that is not to be reconciled any more. It never blocks.
func (q *Queue[K]) Forget(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.states[key]
	if s == nil || s.queued || s.running || s.retry == nil {
		return
	}
	s.retry.Stop()
	s.retry = nil
	if s.counted {
		q.Activity.Add(-1)
	}
	delete(q.states, key)
}

// state, enqueue, dispatch and mayWork are called with the lock held.
func (q *Queue[K]) state(key K) *keyState[K] {
	s := q.states[key]
	if s == nil {
		s = &keyState[K]{key: key}
		q.states[key] = s
	}
	return s
}

func (q *Queue[K]) enqueue(s *keyState[K]) {
	if s.queued {
		return
	}
	s.queued = true
	if !s.running { // else it follows when that has ended
		if !s.counted {
			q.Activity.Add(1)
		}
		s.counted = false
		q.ready = append(q.ready, s)
		q.dispatch()
	}
}

// dispatch starts a goroutine for the next key where none is free. That starts another one as soon
// as it has taken a key. So a few goroutines, whose stacks have grown, work on all keys that wait
// for nothing, and each key that does wait is made up for.
func (q *Queue[K]) dispatch() {
	if q.mayWork() && len(q.ready) > 0 && q.started == q.working && (q.Workers <= 0 || q.started < q.Workers) {
		q.started++
		q.running.Go(q.run)
	}
}

func (q *Queue[K]) mayWork() bool { return q.ctx != nil && q.ctx.Err() == nil && !q.stopped }

// run works on keys as long as there are some.
func (q *Queue[K]) run() {
	for {
		s, reconcile := q.next()
		if s == nil {
			return
		}
		work := q.Reconcile
		if !reconcile && q.Refresh != nil {
			work = q.Refresh
		}
		q.finish(s, reconcile, work(q.ctx, s.key))
	}
}

// next returns nil where there is nothing to do.
func (q *Queue[K]) next() (s *keyState[K], reconcile bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.mayWork() || len(q.ready) == 0 {
		q.started--
		return nil, false
	}
	s, q.ready[0] = q.ready[0], nil // or the array would keep it
	q.ready = q.ready[1:]
	reconcile = s.reconcile
	s.queued, s.reconcile, s.running = false, false, true
	q.working++
	q.dispatch()
	return s, reconcile
}

func (q *Queue[K]) finish(s *keyState[K], reconciled bool, result Result) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.working--
	s.running = false
	after := q.waitAfter(s, reconciled, result)
	if s.again && result.Reason == nil && !q.stopped {
		s.queued, s.reconcile = true, true
	}
	s.again = false
	if after > 0 && !q.stopped && s.retry == nil && !(s.queued && s.reconcile) {
		q.wait(s, after, result)
	}
	switch {
	case s.queued:
	case s.retry != nil && s.conflict && s.backoff.Failures() <= conflictsInARow:
		s.counted = true
	default:
		q.Activity.Add(-1)
	}
	switch {
	case s.queued:
		q.ready = append(q.ready, s)
	case s.retry == nil:
		delete(q.states, s.key)
	}
}

// wait and endWait are called with the lock held.
//
// wait has a key reconciled again, later.
func (q *Queue[K]) wait(s *keyState[K], after time.Duration, result Result) {
	var timer *time.Timer
	timer = time.AfterFunc(after, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.endWait(s, timer)
	})
	s.retry, s.at = timer, time.Time{}
	if result.After <= 0 && !result.At.IsZero() {
		s.at = result.At
		if q.clock == nil {
			q.clock = time.AfterFunc(ClockCheck, q.checkClocks)
		}
	}
}

// endWait has a key reconciled whose time has come. A timer that is not the key's any more
// has no effect: the key was enqueued or forgotten while the timer waited for the lock.
func (q *Queue[K]) endWait(s *keyState[K], timer *time.Timer) {
	if s.retry != timer {
		return
	}
	s.retry, s.reconcile = nil, true
	q.enqueue(s)
}

// checkClocks has the keys reconciled whose time has come by one of the clocks: a timer stands
// still while the machine sleeps, and does not see that its wall clock is set.
func (q *Queue[K]) checkClocks() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.clock = nil
	now, waits := time.Now(), false
	for _, s := range q.states {
		switch {
		case s.retry == nil || s.at.IsZero():
		case clocks.IsDue(s.at, now):
			s.retry.Stop()
			q.endWait(s, s.retry)
		default:
			waits = true
		}
	}
	if waits {
		q.clock = time.AfterFunc(ClockCheck, q.checkClocks)
	}
}

// waitAfter counts failures, and returns how long to wait; 0: until the key is enqueued.
func (q *Queue[K]) waitAfter(s *keyState[K], reconciled bool, result Result) time.Duration {
	if result.Reason != nil && result.After <= 0 && result.At.IsZero() {
		s.conflict = q.Conflict != nil && errors.Is(result.Reason, q.Conflict)
		return s.backoff.Fail(cmp.Or(q.FirstPause, queuePause), result.Reason)
	}
	if reconciled {
		s.backoff.Reset()
		s.conflict = false
	}
	if result.After <= 0 && !result.At.IsZero() {
		return max(time.Until(result.At), time.Millisecond)
	}
	return result.After
}

// Activity counts keys that are queued or worked on. Its zero value is ready for
// use.
type Activity struct {
	mu sync.Mutex
	n  int
	// none is closed when the count comes to zero; nil: no call waits.
	none chan struct{}
}

// Add adds to the count; a negative number takes away.
func (a *Activity) Add(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n += n
	if a.n == 0 && a.none != nil {
		close(a.none)
		a.none = nil
	}
}

// Idle returns a channel that is closed once there is nothing to do, if only for
// a moment.
func (a *Activity) Idle() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	none := a.none
	if none == nil {
		none = make(chan struct{})
	}
	if a.n == 0 {
		close(none)
		return none
	}
	a.none = none
	return none
}
