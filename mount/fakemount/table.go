package fakemount

import (
	"context"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mounttable"
)

// fakeTable is the Table of a fake.
type fakeTable struct{ fake *Mounter }

// At implements [mount.Table].
func (t fakeTable) At(name string) (mount.Entry, bool, error) {
	if !path.IsAbs(name) {
		return mount.Entry{}, false, unix.EINVAL
	}
	f := t.fake
	f.mu.Lock()
	defer f.mu.Unlock()
	name = path.Clean(name)
	at, err := f.walk(path.Dir(name), true)
	if isMissing(err) {
		return mount.Entry{}, false, nil
	}
	if err != nil {
		return mount.Entry{}, false, err
	}
	at = f.top(fakePlace{at.mount, path.Join(at.path, path.Base(name))})
	if !at.isMountRoot() {
		return mount.Entry{}, false, nil
	}
	return at.mount.entry(), true, nil
}

// BySource implements [mount.Table].
func (t fakeTable) BySource(source string) ([]mount.Entry, error) {
	return t.fake.entries(func(m *fakeMount) bool { return m.super.source == source }), nil
}

// ByDevice implements [mount.Table].
func (t fakeTable) ByDevice(device uint64) ([]mount.Entry, error) {
	return t.fake.entries(func(m *fakeMount) bool { return m.super.device == device }), nil
}

// All implements [mount.Table].
func (t fakeTable) All() ([]mount.Entry, error) {
	return t.fake.entries(func(*fakeMount) bool { return true }), nil
}

// Subscribe implements [mount.Table].
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

// changed tells the watchers of the table. The caller holds f.mu.
func (ns *namespace) changed() {
	for changes := range ns.watchers {
		select {
		case changes <- struct{}{}:
		default: // a value is waiting already
		}
	}
}

func (ns *namespace) entries(wanted func(*fakeMount) bool) []mount.Entry {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	entries := []mount.Entry{}
	for _, m := range ns.mounts {
		if wanted(m) {
			entries = append(entries, m.entry())
		}
	}
	return entries
}

func (t fakeTable) Containing(path string) (mount.Entry, error) {
	t.fake.mu.Lock()
	defer t.fake.mu.Unlock()
	at, err := t.fake.walk(path, true)
	if err != nil {
		return mount.Entry{}, err
	}
	return at.mount.entry(), nil
}

func (t fakeTable) Holding(fd int) (mount.Entry, error) {
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return mount.Entry{}, err
	}
	t.fake.mu.Lock()
	defer t.fake.mu.Unlock()
	at, ok := t.fake.shownAt(real)
	if !ok {
		if at, err = t.fake.walk(real, true); err != nil {
			return mount.Entry{}, err
		}
	}
	return at.mount.entry(), nil
}

// FileSystemNames names what a fake's source has by the source, and what begins
// empty by its number, which each has for itself.
func (t fakeTable) FileSystemNames(e mount.Entry) (names []string, ok bool) {
	switch {
	case e.Target == "/":
		return nil, false
	case startsEmpty(e.FSType):
		return []string{"boot:fake:" + mounttable.DeviceNumber(e.Device)}, true
	}
	return []string{"source:" + e.FSType + ":" + e.Source}, true
}
