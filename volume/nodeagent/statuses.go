package nodeagent

import (
	"sync"

	"github.com/podvol/podvol/volume/volumemanager"
)

// statusQueue holds the statuses of volumes until they are reported, for several
// goroutines.
type statusQueue struct {
	news chan struct{} // holds a value after a status was put

	mu    sync.Mutex
	queue []volumemanager.VolumeStatus
}

func newStatusQueue() *statusQueue { return &statusQueue{news: make(chan struct{}, 1)} }

// take queues the outcome of an operation. It never blocks, as the manager
// requires of subscribers. It drops statuses of operations that are under way.
func (q *statusQueue) take(v volumemanager.VolumeStatus) {
	if v.Ended != "" || v.State == volumemanager.StateUnmounted {
		q.put(v)
	}
}

func (q *statusQueue) put(v volumemanager.VolumeStatus) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = append(q.queue, v)
	select {
	case q.news <- struct{}{}:
	default:
	}
}

// drain returns the queued statuses in order.
func (q *statusQueue) drain() []volumemanager.VolumeStatus {
	q.mu.Lock()
	defer q.mu.Unlock()
	queue := q.queue
	q.queue = nil
	return queue
}
