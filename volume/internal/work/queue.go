package work

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/podvol/podvol/volume"
)

// queuePause is the pause after a key's first failure: that of Kubernetes' controllers.
const queuePause = 10 * time.Millisecond

// conflictsInARow is how often a key that meets conflicts counts as active while
// it waits: they are how a controller learns that its cache is behind.
const conflictsInARow = 5

// Queue is a controller's queue of the objects to work on. One goroutine at a time works
// on a key, as soon as one is free; without keys there is none. A key that fails is tried
// again after a [Pause], or at once when it is added meanwhile. Its methods may be called
// from several goroutines, also by the work.
type Queue struct {
	// work looks at the object of a key; or, unless look is set, only at whether
	// it has changed at all.
	work    func(ctx context.Context, key volume.ObjectRef, look bool) error
	workers int // at most
	// activity counts the keys that are queued or worked on.
	activity *Activity
	// conflict is matched by errors that say that somebody else was faster.
	conflict error

	mu      sync.Mutex
	ctx     context.Context // nil until started; work ends with it
	ready   []*keyState
	states  map[volume.ObjectRef]*keyState
	started int // goroutines
	working int // those of them that have a key
	stopped bool
	running sync.WaitGroup
}

type keyState struct {
	key             volume.ObjectRef
	queued, running bool
	look            bool // of what is queued
	failures        int
	retry           *time.Timer // nil unless it waits to be tried again
	// conflict says that it failed because somebody else was faster; counted that
	// it is active all the same while it waits.
	conflict, counted bool
}

// NewQueue returns a queue that begins with [Queue.Start]. workers is how many keys are
// worked on at the same time at most. The work's argument look is unset where the object
// of the key was only heard of ([Queue.Hear]). A key that is queued or worked on is active,
// and so is one that waits after an error that matches conflict, the first few times.
func NewQueue(workers int, activity *Activity, conflict error, work func(ctx context.Context, key volume.ObjectRef, look bool) error) *Queue {
	return &Queue{work: work, workers: workers, activity: activity, conflict: conflict, states: make(map[volume.ObjectRef]*keyState)}
}

// Start begins to work on what was added so far.
func (q *Queue) Start(ctx context.Context) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ctx = ctx
	q.dispatch()
}

// Wait returns when nothing runs any more, after the context of Start ended.
func (q *Queue) Wait() {
	q.mu.Lock()
	q.stopped = true // from here on nothing begins
	q.mu.Unlock()
	q.running.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.states {
		if s.retry != nil {
			s.retry.Stop()
		}
	}
}

// Add has a key worked on. It never blocks.
func (q *Queue) Add(key volume.ObjectRef) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.state(key)
	s.look = true
	if s.retry != nil {
		s.retry.Stop()
		s.retry = nil
	}
	q.enqueue(s)
}

// Remind is Add that keeps the pause of a key that has failed: else two keys, each of
// which keeps the other from something, would be tried for ever without a pause. It
// never blocks.
func (q *Queue) Remind(key volume.ObjectRef) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.state(key)
	if s.retry == nil {
		s.look = true
		q.enqueue(s)
	}
}

// Hear has the work find out whether the object of a key has changed: most of what a
// controller hears is its own doing. It never blocks.
func (q *Queue) Hear(key volume.ObjectRef) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.enqueue(q.state(key))
}

// state, enqueue, dispatch and mayWork are called with the lock held.
func (q *Queue) state(key volume.ObjectRef) *keyState {
	s := q.states[key]
	if s == nil {
		s = &keyState{key: key}
		q.states[key] = s
	}
	return s
}

func (q *Queue) enqueue(s *keyState) {
	if s.queued {
		return
	}
	s.queued = true
	if !s.running { // else it follows when that has ended
		if !s.counted {
			q.activity.Add(1)
		}
		s.counted = false
		q.ready = append(q.ready, s)
		q.dispatch()
	}
}

// dispatch starts as many goroutines as there are keys to take.
func (q *Queue) dispatch() {
	for q.mayWork() && q.started < q.workers && q.started-q.working < len(q.ready) {
		q.started++
		q.running.Go(q.run)
	}
}

func (q *Queue) mayWork() bool { return q.ctx != nil && q.ctx.Err() == nil && !q.stopped }

// run works on keys as long as there are some.
func (q *Queue) run() {
	for {
		s, look := q.next()
		if s == nil {
			return
		}
		q.finish(s, look, q.work(q.ctx, s.key, look))
	}
}

// next returns nil where there is nothing to do.
func (q *Queue) next() (s *keyState, look bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.mayWork() || len(q.ready) == 0 {
		q.started--
		return nil, false
	}
	s, q.ready = q.ready[0], q.ready[1:]
	look = s.look
	s.queued, s.look, s.running = false, false, true
	q.working++
	return s, look
}

func (q *Queue) finish(s *keyState, look bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.working--
	s.running = false
	switch {
	case err != nil:
		s.failures++
		s.conflict = errors.Is(err, q.conflict)
	case look:
		s.failures, s.conflict = 0, false
	}
	if err != nil && q.ctx.Err() == nil && s.retry == nil && !(s.queued && s.look) {
		s.retry = time.AfterFunc(Pause(queuePause, s.failures, err), func() { q.Add(s.key) })
	}
	switch {
	case s.queued:
	case s.retry != nil && s.conflict && s.failures <= conflictsInARow:
		s.counted = true
	default:
		q.activity.Add(-1)
	}
	switch {
	case s.queued:
		q.ready = append(q.ready, s)
	case s.retry == nil:
		delete(q.states, s.key)
	}
}

// Activity counts what is to be done or being done. Its zero value is ready for use.
type Activity struct {
	mu sync.Mutex
	n  int
	// none is closed when the count comes to zero; nil unless somebody waits.
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

// Idle returns what is closed once there is nothing to do, be it for a moment.
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
