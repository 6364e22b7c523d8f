package clusterhost

import "sync"

// bundleWatcher calls one function after changes, in a goroutine that lives only
// while there is something to tell.
type bundleWatcher struct {
	call func()

	mu      sync.Mutex
	again   bool
	stopped bool
	running chan struct{} // closed when the goroutine ends; nil without one
}

// notify has the function called once more. It never blocks.
func (w *bundleWatcher) notify() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	w.again = true
	if w.running == nil {
		w.running = make(chan struct{})
		go w.deliver()
	}
}

func (w *bundleWatcher) deliver() {
	for w.next() {
		w.call()
	}
}

func (w *bundleWatcher) next() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped || !w.again {
		close(w.running)
		w.running = nil
		return false
	}
	w.again = false
	return true
}

// stop returns when the function is not running and will not be called again. It
// may be called twice, but not by the function.
func (w *bundleWatcher) stop() {
	w.mu.Lock()
	w.stopped = true
	running := w.running
	w.mu.Unlock()
	if running != nil {
		<-running
	}
}
