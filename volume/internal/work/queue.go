package work

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/podvol/podvol/util/clocks"
)

// Result is what a reconciler says of a key once it has looked at it. The zero Result: there
// is nothing to do until the key is added again.
type Result struct {
	// After is how long to wait before the key is looked at again, unless it is added
	// before; 0 without an At and a Reason: for ever.
	After time.Duration
	// At, where After is 0, is the time at which it is looked at again, by one of the
	// machine's clocks: up to [ClockLook] late if the machine sleeps meanwhile, or its wall
	// clock is set. Zero: there is none.
	At time.Time
	// Reason is why. With a Reason, no After and no At, the look has failed: the queue
	// waits for a [Pause] that grows with each failure in a row.
	Reason error
}

// queuePause is the pause after a key's first failure: as in Kubernetes'
// controllers.
const queuePause = 10 * time.Millisecond

// ClockLook is the time between two looks whether a time has come for which a key waits
// ([Result].At). One timer is for all keys, and there is none while no key waits for a time.
const ClockLook = time.Minute

// conflictsInARow is how often a key that meets conflicts counts as active while
// it waits: they are how a controller learns that its cache is behind.
const conflictsInARow = 5

// Config is what a [Queue] is made of.
type Config[K comparable] struct {
	// Reconcile looks at the object of a key; or, unless look is set ([Queue.Hear]), only
	// at whether it has changed at all. It is called for one key by one goroutine at a
	// time, and may call the queue's methods but Wait.
	Reconcile func(ctx context.Context, key K, look bool) Result
	// Workers is how many keys are looked at at the same time at most; 0: all.
	Workers int
	// Activity counts the keys that are queued or looked at, and those that wait after an
	// error that matches Conflict, the first few times; nil: nothing is counted.
	Activity *Activity
	// Conflict is matched by errors that say that another client was faster; nil: none is.
	Conflict error
}

// Queue is a queue of the keys to reconcile. One goroutine at a time looks at a key, as soon
// as one is free; without keys there is none. A key that is added while it waits is looked
// at at once. The methods may be called from several goroutines.
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
	clock   *time.Timer // until the next look at the clocks; nil: no key waits for a time
}

type keyState[K comparable] struct {
	key             K
	queued, running bool
	look            bool // of what is queued
	reminded        bool // while it ran; counts unless that run fails
	failures        int
	retry           *time.Timer // nil unless it waits to be looked at again
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

// Start begins to work on the keys added so far, until ctx ends. Then the queue forgets
// its keys and those that are added later.
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

// stop forgets all keys but those that are worked on, which are forgotten when that has
// ended.
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

// Add has a key worked on. It never blocks.
func (q *Queue[K]) Add(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return
	}
	s := q.state(key)
	s.look = true
	if s.retry != nil {
		s.retry.Stop()
		s.retry = nil
	}
	q.enqueue(s)
}

// Remind is Add that keeps the pause of a key that has failed, or that is being looked at
// and fails: else two keys, each of which keeps the other from something, would be tried
// for ever without a pause. It never blocks.
func (q *Queue[K]) Remind(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return
	}
	s := q.state(key)
	switch {
	case s.retry != nil:
	case s.running:
		s.reminded = true
	default:
		s.look = true
		q.enqueue(s)
	}
}

// Hear has the work find out whether the object of a key has changed: most of what a
// controller hears is its own doing. It never blocks.
func (q *Queue[K]) Hear(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.stopped {
		q.enqueue(q.state(key))
	}
}

// Forget ends the wait of a key that is not to be looked at any more. It never blocks.
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

// dispatch starts as many goroutines as there are keys to take.
func (q *Queue[K]) dispatch() {
	for q.mayWork() && (q.Workers <= 0 || q.started < q.Workers) && q.started-q.working < len(q.ready) {
		q.started++
		q.running.Go(q.run)
	}
}

func (q *Queue[K]) mayWork() bool { return q.ctx != nil && q.ctx.Err() == nil && !q.stopped }

// run works on keys as long as there are some.
func (q *Queue[K]) run() {
	for {
		s, look := q.next()
		if s == nil {
			return
		}
		q.finish(s, look, q.Reconcile(q.ctx, s.key, look))
	}
}

// next returns nil where there is nothing to do.
func (q *Queue[K]) next() (s *keyState[K], look bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.mayWork() || len(q.ready) == 0 {
		q.started--
		return nil, false
	}
	s, q.ready[0] = q.ready[0], nil // or the array would keep it
	q.ready = q.ready[1:]
	look = s.look
	s.queued, s.look, s.running = false, false, true
	q.working++
	return s, look
}

func (q *Queue[K]) finish(s *keyState[K], look bool, result Result) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.working--
	s.running = false
	after := q.waitAfter(s, look, result)
	if s.reminded && result.Reason == nil && !q.stopped {
		s.queued, s.look = true, true
	}
	s.reminded = false
	if after > 0 && !q.stopped && s.retry == nil && !(s.queued && s.look) {
		q.wait(s, after, result)
	}
	switch {
	case s.queued:
	case s.retry != nil && s.conflict && s.failures <= conflictsInARow:
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
// wait has a key looked at again.
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
			q.clock = time.AfterFunc(ClockLook, q.lookAtClocks)
		}
	}
}

// endWait has a key looked at whose time has come. A timer that is not the key's any more
// has no effect: the key was added or forgotten while the timer waited for the lock.
func (q *Queue[K]) endWait(s *keyState[K], timer *time.Timer) {
	if s.retry != timer {
		return
	}
	s.retry, s.look = nil, true
	q.enqueue(s)
}

// lookAtClocks has the keys looked at whose time has come by one of the clocks: timers stand
// still while the machine sleeps, and do not see that its wall clock is set.
func (q *Queue[K]) lookAtClocks() {
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
		q.clock = time.AfterFunc(ClockLook, q.lookAtClocks)
	}
}

// waitAfter counts failures, and returns how long to wait; 0: until the key is added.
func (q *Queue[K]) waitAfter(s *keyState[K], look bool, result Result) time.Duration {
	if result.Reason != nil && result.After <= 0 && result.At.IsZero() {
		s.failures++
		s.conflict = q.Conflict != nil && errors.Is(result.Reason, q.Conflict)
		return Pause(queuePause, s.failures, result.Reason)
	}
	if look {
		s.failures, s.conflict = 0, false
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
