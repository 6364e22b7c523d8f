package objects

import (
	"sync"

	"github.com/podvol/podvol/volume"
)

// Watcher delivers changes to one function, as [Source] promises. Authors of a
// [Source] use it.
//
//   - The sender never blocks.
//   - A reference that is in the queue is not queued again.
//   - After Stop nothing is delivered.
//   - It has a goroutine only while there is a change to deliver.
//   - All methods are safe for concurrent use.
type Watcher struct {
	f func(volume.ObjectRef)

	mu      sync.Mutex
	queue   []volume.ObjectRef
	queued  map[volume.ObjectRef]bool
	stopped bool
	running chan struct{} // closed when the goroutine ends; nil without one
}

// NewWatcher returns a watcher that calls f, one call after the other.
func NewWatcher(f func(volume.ObjectRef)) *Watcher {
	return &Watcher{f: f, queued: make(map[volume.ObjectRef]bool)}
}

// Notify queues a change. It never blocks.
func (w *Watcher) Notify(ref volume.ObjectRef) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped || w.queued[ref] {
		return
	}
	w.queue = append(w.queue, ref)
	w.queued[ref] = true
	if w.running == nil {
		w.running = make(chan struct{})
		go w.deliver()
	}
}

func (w *Watcher) deliver() {
	for {
		ref, ok := w.next()
		if !ok {
			return
		}
		w.f(ref)
	}
}

func (w *Watcher) next() (volume.ObjectRef, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped || len(w.queue) == 0 {
		close(w.running)
		w.running = nil
		return volume.ObjectRef{}, false
	}
	ref := w.queue[0]
	w.queue = w.queue[1:]
	// Out of the set before f runs: a change meanwhile is delivered once more.
	delete(w.queued, ref)
	return ref, true
}

// Stop returns when f is not running and will not be called again. It may be
// called twice, but not by f.
func (w *Watcher) Stop() {
	w.mu.Lock()
	w.stopped = true
	running := w.running
	w.mu.Unlock()
	if running != nil {
		<-running
	}
}
