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
	f.ns.mu.Lock()
	defer f.ns.mu.Unlock()
	name = path.Clean(name)
	at, err := f.ns.walk(path.Dir(name), true)
	if isMissing(err) {
		return mount.Entry{}, false, nil
	}
	if err != nil {
		return mount.Entry{}, false, err
	}
	at = f.ns.top(fakePlace{at.mount, path.Join(at.path, path.Base(name))})
	if !at.isMountRoot() {
		return mount.Entry{}, false, nil
	}
	return at.mount.entry(), true, nil
}

// BySource implements [mount.Table].
func (t fakeTable) BySource(source string) ([]mount.Entry, error) {
	return t.fake.ns.entries(func(m *fakeMount) bool { return m.super.source == source }), nil
}

// ByDevice implements [mount.Table].
func (t fakeTable) ByDevice(device uint64) ([]mount.Entry, error) {
	return t.fake.ns.entries(func(m *fakeMount) bool { return m.super.device == device }), nil
}

// All implements [mount.Table].
func (t fakeTable) All() ([]mount.Entry, error) {
	return t.fake.ns.entries(func(*fakeMount) bool { return true }), nil
}

// Subscribe implements [mount.Table].
func (t fakeTable) Subscribe(ctx context.Context) <-chan struct{} {
	f := t.fake
	changes := make(chan struct{}, 1)
	f.ns.mu.Lock()
	defer f.ns.mu.Unlock()
	f.ns.watchers[changes] = struct{}{}
	context.AfterFunc(ctx, func() {
		f.ns.mu.Lock()
		defer f.ns.mu.Unlock()
		delete(f.ns.watchers, changes)
		close(changes)
	})
	return changes
}

// changed tells the watchers of the table. The caller holds f.ns.mu.
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
	t.fake.ns.mu.Lock()
	defer t.fake.ns.mu.Unlock()
	at, err := t.fake.ns.walk(path, true)
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
	t.fake.ns.mu.Lock()
	defer t.fake.ns.mu.Unlock()
	at, ok := t.fake.ns.shownAt(real)
	if !ok {
		if at, err = t.fake.ns.walk(real, true); err != nil {
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
