package mount

import (
	"context"
	"path"

	"golang.org/x/sys/unix"
)

// fakeTable is the Table of a fake.
type fakeTable struct{ fake *FakeMounter }

// At implements [Table].
func (t fakeTable) At(name string) (Entry, bool, error) {
	if !path.IsAbs(name) {
		return Entry{}, false, unix.EINVAL
	}
	f := t.fake
	f.mu.Lock()
	defer f.mu.Unlock()
	name = path.Clean(name)
	at, err := f.walk(path.Dir(name), true)
	if isMissing(err) {
		return Entry{}, false, nil
	}
	if err != nil {
		return Entry{}, false, err
	}
	at = f.top(fakePlace{at.mount, path.Join(at.path, path.Base(name))})
	if !at.isMountRoot() {
		return Entry{}, false, nil
	}
	return at.mount.entry(), true, nil
}

// BySource implements [Table].
func (t fakeTable) BySource(source string) ([]Entry, error) {
	return t.fake.entries(func(m *fakeMount) bool { return m.super.source == source }), nil
}

// ByDevice implements [Table].
func (t fakeTable) ByDevice(device uint64) ([]Entry, error) {
	return t.fake.entries(func(m *fakeMount) bool { return m.super.device == device }), nil
}

// All implements [Table].
func (t fakeTable) All() ([]Entry, error) {
	return t.fake.entries(func(*fakeMount) bool { return true }), nil
}

// Subscribe implements [Table].
func (t fakeTable) Subscribe(ctx context.Context) <-chan struct{} {
	f := t.fake
	changes := make(chan struct{}, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers[changes] = struct{}{}
	context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.watchers, changes)
		close(changes)
	})
	return changes
}

// changed tells those who watch the table. The caller holds f.mu.
func (f *FakeMounter) changed() {
	for changes := range f.watchers {
		select {
		case changes <- struct{}{}:
		default: // a value is waiting already
		}
	}
}

func (f *FakeMounter) entries(wanted func(*fakeMount) bool) []Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries := []Entry{}
	for _, m := range f.mounts {
		if wanted(m) {
			entries = append(entries, m.entry())
		}
	}
	return entries
}
