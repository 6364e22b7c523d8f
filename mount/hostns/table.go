package hostns

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
)

// remoteTable is the host's mount table, as the child keeps it.
type remoteTable struct{ m *Mounter }

// At implements [mount.Table].
func (t remoteTable) At(path string) (mount.Entry, bool, error) {
	a, err := t.m.ask(question{Op: opAt, Path: path})
	return a.Entry, a.Found, err
}

// BySource implements [mount.Table].
func (t remoteTable) BySource(source string) ([]mount.Entry, error) {
	a, err := t.m.ask(question{Op: opSource, Path: source})
	return a.Entries, err
}

// ByDevice implements [mount.Table].
func (t remoteTable) ByDevice(device uint64) ([]mount.Entry, error) {
	a, err := t.m.ask(question{Op: opDevice, Device: device})
	return a.Entries, err
}

// All implements [mount.Table].
func (t remoteTable) All() ([]mount.Entry, error) {
	a, err := t.m.ask(question{Op: opAll})
	return a.Entries, err
}

// Below is what [mount.Below] asks for.
func (t remoteTable) Below(dir string) ([]mount.Entry, error) {
	a, err := t.m.ask(question{Op: opBelow, Path: dir})
	return a.Entries, err
}

// Containing is what [table.Containing] asks for: links are the host's.
func (t remoteTable) Containing(path string) (mount.Entry, error) {
	a, err := t.m.ask(question{Op: opContains, Path: path})
	return a.Entry, err
}

// Holding is what [table.Holding] asks for: the mount on the host that this process sees at
// the same place.
func (t remoteTable) Holding(fd int) (mount.Entry, error) {
	copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return mount.Entry{}, os.NewSyscallError("fcntl", err)
	}
	file := os.NewFile(uintptr(copied), "")
	defer file.Close()
	seen, err := table.Holding(t.m.own, file)
	if err != nil {
		return mount.Entry{}, err
	}
	there, found, err := t.At(seen.Target)
	if err == nil && (!found || there.Device != seen.Device || there.Root != seen.Root) {
		err = fmt.Errorf("the host has not the mount that this process sees at %s", seen.Target)
	}
	return there, err
}

// Subscribe implements [mount.Table]. The first value says that changes are seen from then on. When the child dies, that counts as a change, and the
// next one is asked. The channel is closed when none can be started.
func (t remoteTable) Subscribe(ctx context.Context) <-chan struct{} {
	changes := make(chan struct{}, 1)
	changed := func(answer) {
		select {
		case changes <- struct{}{}:
		default:
		}
	}
	go func() {
		defer close(changes)
		for ctx.Err() == nil {
			if !t.follow(ctx, changed) {
				return
			}
			changed(answer{})
		}
	}()
	return changes
}

// follow hands on the changes that one child sees, and reports whether the next one may.
func (t remoteTable) follow(ctx context.Context, changed func(answer)) bool {
	s, err := t.m.session(ctx)
	if err != nil {
		return false
	}
	ended := make(chan struct{})
	id, err := s.post(question{Op: opSubscribe}, nil, func(a answer) {
		if !a.Changed {
			close(ended)
			return
		}
		changed(a)
	})
	if err != nil {
		<-s.gone
		return true
	}
	select {
	case <-s.gone:
		return true
	case <-ended:
		return false // the table can no longer be watched
	case <-ctx.Done():
		_ = s.wire.send(question{ID: id, Op: opCancel}, nil)
		select { // nothing is sent on a closed channel
		case <-ended:
		case <-s.gone:
		}
		return false
	}
}
