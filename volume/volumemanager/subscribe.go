package volumemanager

// Subscribe calls f with each new status of a volume until stop is called. f
// must not block and must not call the manager. After stop returns, f is not
// called any more; stop must not be called from within f.
func (m *Manager) Subscribe(f func(VolumeStatus)) (stop func()) {
	w := &watcher{f}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchers[w] = struct{}{}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, w)
	}
}

// watcher makes a function comparable.
type watcher struct{ f func(VolumeStatus) }

// notify tells the subscribers. The caller holds the lock, so that statuses
// reach them in order, and none after stop.
func (m *Manager) notify(status VolumeStatus) {
	for w := range m.watchers {
		w.f(status)
	}
}
