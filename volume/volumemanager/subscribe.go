package volumemanager

import "sync"

// Subscribe calls f with each new status of a volume until stop is called. f
// must not block and must not call the manager. After stop returns, f is not
// called any more; stop must not be called from within f.
func (m *Manager) Subscribe(f func(VolumeStatus)) (stop func()) {
	w := &watcher{f: f}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchers[w] = struct{}{}
	return func() {
		m.mu.Lock()
		delete(m.watchers, w)
		m.mu.Unlock()
		w.stop()
	}
}

func (m *Manager) notify(status VolumeStatus) {
	m.mu.Lock()
	watchers := make([]*watcher, 0, len(m.watchers))
	for w := range m.watchers {
		watchers = append(watchers, w)
	}
	m.mu.Unlock()
	for _, w := range watchers {
		w.notify(status)
	}
}

// watcher calls f one status at a time and never after stop.
type watcher struct {
	mu      sync.Mutex
	f       func(VolumeStatus)
	stopped bool
}

func (w *watcher) notify(s VolumeStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		w.f(s)
	}
}

func (w *watcher) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
}
