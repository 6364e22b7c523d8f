package persistentvolume

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

const (
	// retryFirst and retryLast bound the pause after a failure, which doubles:
	// those of the controllers of Kubernetes begin as short, the end is the
	// kubelet's.
	retryFirst = 10 * time.Millisecond
	retryLast  = 2*time.Minute + 2*time.Second
)

// retryPause is how long to wait after so many failures in a row, the last of
// which was err.
func retryPause(first time.Duration, failures int, err error) time.Duration {
	if at, ok := volume.RetryAt(err); ok {
		return min(max(time.Until(at), first), retryLast)
	}
	pause := first
	for range failures - 1 {
		if pause *= 2; pause >= retryLast {
			return retryLast
		}
	}
	return pause
}

// workQueue works on keys, each by one goroutine at a time and as soon as one
// is free. Nothing runs while there is nothing to do. A key that fails is tried
// again after a pause, or at once when it is added meanwhile.
type workQueue struct {
	// work looks at the object of a key; or, unless look is set, only at whether
	// it has changed at all.
	work    func(ctx context.Context, key volume.ObjectRef, look bool) error
	workers int // at most
	// activity counts the keys that are queued or worked on.
	activity *activity

	mu      sync.Mutex
	ctx     context.Context // nil until started; work ends with it
	ready   []*workState
	states  map[volume.ObjectRef]*workState
	started int // goroutines
	working int // those of them that have a key
	stopped bool
	running sync.WaitGroup
}

type workState struct {
	key             volume.ObjectRef
	queued, running bool
	look            bool // of what is queued
	failures        int
	retry           *time.Timer // nil unless it waits to be tried again
	// conflict says that it failed because somebody else was faster; counted that
	// it is active all the same while it waits.
	conflict, counted bool
}

// conflictsInARow is how often a key that meets conflicts counts as active while
// it waits: they are how a controller learns that its cache is behind.
const conflictsInARow = 5

func newWorkQueue(workers int, activity *activity, work func(context.Context, volume.ObjectRef, bool) error) *workQueue {
	return &workQueue{work: work, workers: workers, activity: activity, states: make(map[volume.ObjectRef]*workState)}
}

// start begins to work on what was added so far.
func (q *workQueue) start(ctx context.Context) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ctx = ctx
	q.dispatch()
}

// wait returns when nothing runs any more, after the context of start ended.
func (q *workQueue) wait() {
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

// add has a key worked on. It never blocks.
func (q *workQueue) add(key volume.ObjectRef) {
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

// remind has a key worked on, unless it has failed and waits to be tried again:
// two that keep each other from something would try for ever without a pause. It
// never blocks.
func (q *workQueue) remind(key volume.ObjectRef) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.state(key)
	if s.retry == nil {
		s.look = true
		q.enqueue(s)
	}
}

// hear has it found out whether the object of a key has changed: much that is
// heard is what the controller itself has done. It never blocks.
func (q *workQueue) hear(key volume.ObjectRef) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.enqueue(q.state(key))
}

// state, enqueue, dispatch and mayWork are called with the lock held.
func (q *workQueue) state(key volume.ObjectRef) *workState {
	s := q.states[key]
	if s == nil {
		s = &workState{key: key}
		q.states[key] = s
	}
	return s
}

func (q *workQueue) enqueue(s *workState) {
	if s.queued {
		return
	}
	s.queued = true
	if !s.running { // else it follows when that has ended
		if !s.counted {
			q.activity.add(1)
		}
		s.counted = false
		q.ready = append(q.ready, s)
		q.dispatch()
	}
}

// dispatch starts as many goroutines as there are keys to take.
func (q *workQueue) dispatch() {
	for q.mayWork() && q.started < q.workers && q.started-q.working < len(q.ready) {
		q.started++
		q.running.Go(q.run)
	}
}

func (q *workQueue) mayWork() bool { return q.ctx != nil && q.ctx.Err() == nil && !q.stopped }

// run works on keys as long as there are some.
func (q *workQueue) run() {
	for {
		s, look := q.next()
		if s == nil {
			return
		}
		q.finish(s, look, q.work(q.ctx, s.key, look))
	}
}

// next returns nil where there is nothing to do.
func (q *workQueue) next() (s *workState, look bool) {
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

func (q *workQueue) finish(s *workState, look bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.working--
	s.running = false
	switch {
	case err != nil:
		s.failures++
		s.conflict = errors.Is(err, objects.ErrConflict)
	case look:
		s.failures, s.conflict = 0, false
	}
	if err != nil && q.ctx.Err() == nil && s.retry == nil && !(s.queued && s.look) {
		s.retry = time.AfterFunc(retryPause(retryFirst, s.failures, err), func() { q.add(s.key) })
	}
	switch {
	case s.queued:
	case s.retry != nil && s.conflict && s.failures <= conflictsInARow:
		s.counted = true
	default:
		q.activity.add(-1)
	}
	switch {
	case s.queued:
		q.ready = append(q.ready, s)
	case s.retry == nil:
		delete(q.states, s.key)
	}
}
