package volumemanager

import (
	"time"

	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
	"github.com/podvol/podvol/volume/volumemanager/internal/lifecycle"
	"github.com/podvol/podvol/volume/volumemanager/internal/oncepod"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// actualStateOfWorld is the state of the world as it is: what may be at each directory of the
// pods' volumes, and which devices and PersistentVolumes they have with that. It belongs to the
// entries. The operations change it, and the recovery.
type actualStateOfWorld struct {
	entries  *entries
	rootDir  string
	devices  *devices.Table
	oncePod  oncepod.Waiting[*podVolume]
	schedule *schedule
	status   *publisher
	life     *lifecycle.Lifecycle
}

// set replaces the known state of a volume's directory.
func (w *actualStateOfWorld) set(s *podVolume, a actualVolume) {
	w.entries.Lock()
	defer w.entries.Unlock()
	gone := s.actual.exists() && !a.exists()
	name := s.actual.key.Spec // a PersistentVolume's own
	s.actual = a
	w.status.note(s)
	if !gone {
		return
	}
	for _, waiting := range w.oncePod.Take(name) {
		if waiting.IsWanted() {
			w.schedule.resync(waiting)
		}
	}
}

// of returns the known state of a volume's directory.
func (w *actualStateOfWorld) of(s *podVolume) actualVolume {
	w.entries.Lock()
	defer w.entries.Unlock()
	return s.actual
}

// recovered returns the volume of a directory that was found, which may be
// wanted already. The caller holds the lock.
func (w *actualStateOfWorld) recovered(key rootdir.Key, names []string) *podVolume {
	p := w.entries.pod(key.PodUID)
	s := p.volumeFor(names)
	if s.actual.exists() {
		s = &podVolume{pod: p, names: names}
		p.volumes = append(p.volumes, s)
	}
	s.actual.key = key
	return s
}

// drop forgets a volume of which nothing is left, and the pod with its last one. The caller
// holds the lock.
func (w *actualStateOfWorld) drop(s *podVolume) {
	p := s.pod
	if !p.remove(s) {
		return
	}
	w.status.note(s)
	w.devices.Leave(s)
	w.stopWaiting(s)
	s.retryAt = time.Time{}
	w.stopFollowing(s)
	w.schedule.forget(s)
	if s.state != StateUnmounted {
		s.state, s.err, s.since = StateUnmounted, nil, time.Now()
		w.status.publish(s)
	}
	s.wanted, s.unused = false, false // it may be decided on once more, when its pod has another entry
	s.attempted = s.generation        // no call waits for an attempt at what is gone
	p.announce()
	if len(p.volumes) == 0 && !p.wanted {
		delete(w.entries.pods, p.uid)
	}
}

// rest ends all work on a volume that no container uses: no attempt, no refresh,
// no watch, and no wait for others. A mount stays, as with the kubelet, and goes
// with the pod. It is idempotent. The caller holds the lock.
func (w *actualStateOfWorld) rest(s *podVolume) {
	s.retryAt = time.Time{}
	if s.doing != opNone {
		return // it is reconciled again when the operation ends
	}
	w.stopFollowing(s)
	w.stopWaiting(s)
	if !s.actual.exists() {
		w.devices.Leave(s)
		s.shown = nil
		w.status.note(s)
	}
	s.failures, s.pauses, s.err = 0, 0, nil
	if s.state == StateMounted || s.state == StateUnused || s.actual.unreadable != nil || s.actual.detached != nil {
		return
	}
	s.enter(StateUnused, time.Now())
	w.status.publish(s)
}

// stopFollowing stops the refresh and the watches that would set a volume up again, while
// no operation is under way. The caller holds the lock.
func (w *actualStateOfWorld) stopFollowing(s *podVolume) {
	s.refreshAt = time.Time{}
	if !s.watches.IsEmpty() {
		w.life.Go(s.watches.Take().Stop) // stopping may wait for a call that waits for the lock
	}
}

// stopWaiting makes a volume wait for no other pod, and for no label of a device. The caller
// holds the lock.
func (w *actualStateOfWorld) stopWaiting(s *podVolume) {
	if !s.mayWait {
		return
	}
	s.mayWait = false
	w.devices.StopWaiting(s)
	w.oncePod.Stop(s)
}

// hidden says why there may be volumes of a plugin that no record tells of.
func (w *actualStateOfWorld) hidden(plugin string) error {
	if err := rootdir.Damaged(w.rootDir); err != nil {
		return err
	}
	w.entries.Lock()
	defer w.entries.Unlock()
	for s := range w.entries.volumes() {
		if s.actual.unreadable != nil && s.actual.key.Plugin == plugin {
			return s.actual.unreadable
		}
	}
	return nil
}

// hiddenPrefixes are the beginnings of the unique names of volumes whose records cannot be
// read. The caller holds the lock.
func (w *actualStateOfWorld) hiddenPrefixes(damaged bool) (prefixes []string) {
	if damaged {
		return []string{""}
	}
	for s := range w.entries.volumes() {
		if s.actual.unreadable != nil {
			prefixes = append(prefixes, s.actual.key.Plugin+"/")
		}
	}
	return prefixes
}
