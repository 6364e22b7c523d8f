package volumemanager

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/mountrecord"
)

// tearDown undoes a slot: unbind its sub-paths, act, let go of the device,
// remove what is empty then, and only after that the record: nothing else leads
// a later owner there.
func (m *Manager) tearDown(ctx context.Context, s *slot) error {
	m.mu.Lock()
	was := s.actual
	m.mu.Unlock()
	if err := m.unapply(ctx, s, was); err != nil {
		m.noteDetached(s, was, err)
		return err
	}
	m.setActual(s, actualVolume{})
	return nil
}

// noteDetached remembers, and writes down, that a volume was detached lazily: it
// stays, with its record and its device, until the file system is gone. Until
// the note is on disk a crash lets the volume count as unmounted.
func (m *Manager) noteDetached(s *slot, was actualVolume, err error) {
	detached, ok := errors.AsType[*lazyunmount.Error](err)
	if !ok || was.record == nil || detached == was.detached {
		return
	}
	is := was
	record := *was.record
	record.Detached, record.Confirmed = detached.Detachment(time.Now()), nil
	is.record, is.detached = &record, detached
	line, err := mountrecord.Encode(&record)
	if err == nil {
		is.digest = digestOf(line)
		err = m.records.write(was.key, line)
	}
	if err != nil {
		m.log.Warn("a volume that was detached while it may be in use could not be recorded as such; after a restart it counts as unmounted", "podUID", was.key.podUID, "volume", was.key.spec, "error", err)
	}
	m.setActual(s, is)
}

func (m *Manager) unapply(ctx context.Context, s *slot, was actualVolume) error {
	if was.unreadable != nil {
		return volume.NothingDone(was.unreadable)
	}
	detached := was.detached
	if detached != nil {
		switch left, err := m.partlyMounted(was); {
		case err != nil:
			return alsoDetached(detached, err)
		case !left && detached.InUse():
			return detached
		}
	}
	plugin, err := m.plugins.FindPluginByName(was.key.plugin)
	if err != nil {
		return volume.NothingDone(err)
	}
	more, err := m.unbind(ctx, was.key.subPaths())
	detached = joinDetached(detached, more)
	if err == nil {
		err = m.unpublish(ctx, was, plugin)
	}
	if err != nil {
		return alsoDetached(detached, err)
	}
	if detached != nil && detached.InUse() {
		return detached
	}
	if err := m.unstage(ctx, s, was, plugin); err != nil {
		return err
	}
	if err := m.removeEmptyDirs(ctx, s); err != nil {
		return err // with its record: nothing else would lead there again
	}
	return m.records.release(was.key, was.record)
}

// partlyMounted reports whether more of a volume is mounted than what was
// detached: something else has failed then.
func (m *Manager) partlyMounted(was actualVolume) (bool, error) {
	mounted, err := m.mountedBelow(was.record.Path)
	if err != nil || mounted {
		return mounted, err
	}
	parts, err := m.mountsIn(was.key.subPaths().dir(m.host.RootDir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return len(parts) > 0, err
}

// alsoDetached is a failure after something was detached, which no later
// attempt will see.
func alsoDetached(detached *lazyunmount.Error, err error) error {
	if detached == nil {
		return err
	}
	last, ok := errors.AsType[*lazyunmount.Error](err)
	if !ok {
		return errors.Join(detached, err)
	}
	detached = joinDetached(detached, last)
	if isDetached(err) {
		return detached
	}
	return errors.Join(detached, err)
}

// isDetached reports whether an error says nothing else.
func isDetached(err error) bool {
	if of, ok := err.(*volume.Error); ok {
		err = of.Err
	}
	_, only := err.(*lazyunmount.Error)
	return only
}

// joinDetached is what was detached then and now, either of which may be nil.
func joinDetached(then, now *lazyunmount.Error) *lazyunmount.Error {
	switch {
	case then == nil:
		return now
	case now == nil:
		return then
	}
	return &lazyunmount.Error{Mount: now.Mount, Superblocks: slices.Concat(then.Superblocks, now.Superblocks)}
}

// unpublish takes the volume from the pod; its device, if it has one, stays.
func (m *Manager) unpublish(ctx context.Context, was actualVolume, plugin volume.VolumePlugin) error {
	if was.record.Spec().IsBlock() {
		return m.unmapDevice(ctx, was, plugin)
	}
	unmounter, err := plugin.NewUnmounter(was.key.spec, was.key.podUID)
	if err != nil {
		return err
	}
	return unmounter.TearDown(ctx)
}
