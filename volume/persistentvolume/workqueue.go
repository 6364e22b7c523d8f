package persistentvolume

import (
	"context"
	"sync"
	"time"

	"github.com/podvol/podvol/volume"
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
	work    func(context.Context, volume.ObjectRef) error
	workers int // at most
	// activity counts the keys that are queued or worked on.
	activity *activity

	mu      sync.Mutex
	ctx     context.Context // nil until started; work ends with it
	ready   []volume.ObjectRef
	states  map[volume.ObjectRef]*workState
	working int
	stopped bool
	running sync.WaitGroup
}

type workState struct {
	queued, running bool
	failures        int
	retry           *time.Timer // nil unless it waits to be tried again
}

func newWorkQueue(workers int, activity *activity, work func(context.Context, volume.ObjectRef) error) *workQueue {
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
	s := q.states[key]
	if s == nil {
		s = new(workState)
		q.states[key] = s
	}
	q.enqueue(key, s)
}

// enqueue is called with the lock held.
func (q *workQueue) enqueue(key volume.ObjectRef, s *workState) {
	if s.retry != nil {
		s.retry.Stop()
		s.retry = nil
	}
	if s.queued {
		return
	}
	s.queued = true
	if !s.running { // else it follows when that has ended
		q.activity.add(1)
		q.ready = append(q.ready, key)
		q.dispatch()
	}
}

// dispatch is called with the lock held.
func (q *workQueue) dispatch() {
	for q.ctx != nil && q.ctx.Err() == nil && !q.stopped && len(q.ready) > 0 && q.working < q.workers {
		key := q.ready[0]
		q.ready = q.ready[1:]
		s := q.states[key]
		s.queued, s.running = false, true
		q.working++
		ctx := q.ctx
		q.running.Go(func() { q.finish(key, q.work(ctx, key)) })
	}
}

func (q *workQueue) finish(key volume.ObjectRef, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.working--
	s := q.states[key]
	s.running = false
	if err == nil {
		s.failures = 0
	} else {
		s.failures++
	}
	if !s.queued {
		q.activity.add(-1)
	}
	switch {
	case s.queued:
		q.ready = append(q.ready, key)
	case err != nil && q.ctx.Err() == nil:
		s.retry = time.AfterFunc(retryPause(retryFirst, s.failures, err), func() { q.add(key) })
	default:
		delete(q.states, key)
	}
	q.dispatch()
}
