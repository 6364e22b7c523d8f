package volumemanager

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/declared"
	"github.com/podvol/podvol/volume/volumemanager/internal/dependencies"
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
	"github.com/podvol/podvol/volume/volumemanager/internal/growth"
	"github.com/podvol/podvol/volume/volumemanager/internal/lifecycle"
	"github.com/podvol/podvol/volume/volumemanager/internal/oncepod"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// entries are the pods of a node and their volumes, which the desired and the actual state of
// the world share. Their lock guards them, and all that both states keep.
type entries struct {
	sync.Mutex
	pods map[types.UID]*podState
	// schedule and status are given to each pod.
	schedule *schedule
	status   *publisher
}

// pod returns the state of a pod and makes it if there is none. The caller
// holds the lock.
func (e *entries) pod(uid types.UID) *podState {
	p, ok := e.pods[uid]
	if !ok {
		p = &podState{uid: uid, schedule: e.schedule, status: e.status}
		e.pods[uid] = p
	}
	return p
}

// volumes are all pods' volumes. The caller holds the lock.
func (e *entries) volumes() iter.Seq[*podVolume] {
	return func(yield func(*podVolume) bool) {
		for _, p := range e.pods {
			for _, s := range p.volumes {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// at returns the volume of a directory that is there; nil: none. The caller holds the lock.
func (e *entries) at(key rootdir.Key) *podVolume {
	return e.pods[key.PodUID].find(func(s *podVolume) bool { return s.actual.exists() && s.actual.key == key })
}

// podState is the pod's part of the desired and of the actual state of the world.
// The lock of the entries guards it.
type podState struct {
	uid  types.UID
	name types.NamespacedName
	// pod is the pod as it was declared last, if it was since the start. It is packed
	// while nothing is done.
	pod declared.Pod
	// declaration counts up with each declaration, over all pods.
	declaration int
	// wanted: declared, and not deleted since.
	wanted bool
	// deleted: the agent has said that this pod shall go; ended: its status alone
	// has said so, and the agent may yet.
	deleted, ended bool
	// released: the agent has promised that none of its containers runs.
	released bool
	volumes  []*podVolume
	// changed is closed at the next change of the pod or one of its volumes; nil
	// while no call waits.
	changed chan struct{}

	schedule *schedule
	status   *publisher
}

// podVolume is one directory of a pod: one volume, or several of one claim. It is an
// entry of the desired state of the world (wanted, unused, generation) and of the
// actual one (actual, state); the rest is the operation that makes them equal.
type podVolume struct {
	pod   *podState
	names []string // the pod's volumes that are this directory

	// wanted: the pod as it was declared last has these volumes, and a container
	// of it uses one of them; unused: none does.
	wanted, unused bool
	// generation counts the reasons for another operation, attempted and
	// applied say which of them the last operation, and the last success, took
	// up.
	generation, attempted, applied int
	// awaited is the generation whose operation ended waiting for a report about
	// the attachment.
	awaited int

	// actual is what may be on disk; its zero value: nothing.
	actual actualVolume

	// shown is what status rows say of a volume that has no record.
	shown *mountrecord.Record
	state VolumeState
	since time.Time
	took  time.Duration
	err   error
	// condition is what the storage said of the mounted volume when it was measured last.
	condition *volume.Condition

	doing   operation
	began   time.Time
	ended   operation // while its outcome is published
	undoing bool      // a set-up that has done nothing; its record is about to go
	// unmounted: a tear-down that has left nothing in the pod's directories.
	unmounted bool
	progress  *volume.Progress        // of the set-up that is under way; nil: nothing was said
	giveUp    context.CancelCauseFunc // ends the operation that is under way
	backoff   work.Backoff
	// retryAt is the end of the pause after a failure, and refreshAt when the plugin
	// wants to be called again; zero: never.
	retryAt, refreshAt time.Time

	holding devices.Holding // what the node's devices keep of it
	mayWait bool            // for another pod, or for a label of its device

	growth     growth.Refusal // why it does not grow; guarded by the lock of the entries
	unreported work.Backoff   // of reports of growth; belongs to the operation under way

	watches dependencies.Set // belongs to the operation under way
}

// operation is a volume's operation under way.
type operation int

const (
	opNone operation = iota
	opSetUp
	opTearDown
	// opRelease asks whether the pod's containers are gone.
	opRelease
)

func (o operation) String() string {
	switch o {
	case opSetUp:
		return "set-up"
	case opTearDown:
		return "tear-down"
	case opRelease:
		return "look at its containers"
	}
	return ""
}

// actualVolume is the known state of a directory.
type actualVolume struct {
	key    rootdir.Key
	record *mountrecord.Record // nil where there is none, or it cannot be read
	digest rootdir.Digest      // of the record as it is stored, to see whether it changed
	source string              // the plugin's name of the source, to see whether it changed
	device *devices.Use        // what it needs of its node; nil: nothing, or not known
	// unpublished: nothing of it is left in its pod, but its device on the node has yet to be
	// unmounted. A restart forgets that, and unmounts again what is not mounted.
	unpublished bool
	// unreadable says why the record cannot be read; then the volume is left
	// alone.
	unreadable *UnreadableRecordError
	// detached says that nothing is mounted any more, but the file system may
	// be in use out of sight; nil otherwise. The record has it too.
	detached *lazyunmount.Error
}

func (a actualVolume) exists() bool { return a.record != nil || a.unreadable != nil }

// isPods reports whether something of the volume may be in its pod.
func (a actualVolume) isPods() bool { return a.exists() && !a.unpublished }

// isFound reports whether the volume was found under the name of its
// spec, which need not be the name that the pod gives it.
func (a actualVolume) isFound() bool {
	return a.unreadable != nil || a.record != nil && a.record.Rebuilt
}

// volumeFor returns the entry for these of the pod's volumes: the one that has just them, else one
// that is not wanted any more and has one of them, else a new one.
func (p *podState) volumeFor(names []string) *podVolume {
	fits := func(s *podVolume) bool { return slices.Equal(s.names, names) }
	overlaps := func(s *podVolume) bool {
		return !s.wanted && slices.ContainsFunc(names, func(n string) bool { return slices.Contains(s.names, n) })
	}
	for _, is := range []func(*podVolume) bool{fits, overlaps} {
		if s := p.find(is); s != nil {
			return s
		}
	}
	s := &podVolume{pod: p, names: names, state: StatePending, since: time.Now()}
	p.volumes = append(p.volumes, s)
	return s
}

// find returns the first volume that is as asked for; nil: none.
func (p *podState) find(is func(*podVolume) bool) *podVolume {
	if p == nil {
		return nil
	}
	if i := slices.IndexFunc(p.volumes, is); i >= 0 {
		return p.volumes[i]
	}
	return nil
}

// volumesThat are the pod's volumes that are as asked for.
func (p *podState) volumesThat(are func(*podVolume) bool) iter.Seq[*podVolume] {
	return func(yield func(*podVolume) bool) {
		for _, s := range p.volumes {
			if are(s) && !yield(s) {
				return
			}
		}
	}
}

// remove takes a volume off the pod, and reports whether it was there.
func (p *podState) remove(s *podVolume) bool {
	i := slices.Index(p.volumes, s)
	if i >= 0 {
		p.volumes = slices.Delete(p.volumes, i, i+1)
	}
	return i >= 0
}

// isLeft reports whether the pod was declared anew so that nothing is wanted of the
// volume.
func (s *podVolume) isLeft() bool { return s.pod.wanted && !s.wanted }

// isAwaiting reports whether the volume does nothing until a report comes, or
// another reason to look at it again.
func (s *podVolume) isAwaiting() bool {
	return s.generation > 0 && s.awaited == s.generation
}

// Exists implements [devices.Holder].
func (s *podVolume) Exists() bool { return s.actual.exists() }

// IsWanted implements [devices.Holder].
func (s *podVolume) IsWanted() bool { return s.wanted && s.pod.wanted }

// IsMounted implements [devices.Holder].
func (s *podVolume) IsMounted() bool { return s.state == StateMounted }

func (s *podVolume) enter(state VolumeState, now time.Time) {
	if s.state != state {
		s.state, s.since = state, now
	}
}

// resync is a reason for another operation, at once.
func (s *podVolume) resync() {
	s.generation++
	s.backoff.Reset()
	s.retryAt = time.Time{}
}

// resync has every volume of the pod reconciled. The caller holds the lock.
func (p *podState) resync() {
	for _, s := range p.volumes {
		p.schedule.resync(s)
	}
}

// rest packs the pod unless a volume of it is to be set up. The caller holds the lock.
func (p *podState) rest() {
	if p.find(func(s *podVolume) bool { return s.wanted && (s.doing != opNone || s.attempted != s.generation) }) == nil {
		p.pod.Pack()
	}
}

// announce wakes those that wait for a change of the pod.
func (p *podState) announce() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// nextChange returns the channel that is closed at the next change.
func (p *podState) nextChange() <-chan struct{} {
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// describe returns the record that rows are made of.
func (s *podVolume) describe() *mountrecord.Record {
	switch {
	case s.actual.record != nil:
		return s.actual.record
	case s.shown != nil:
		return s.shown
	}
	r := &mountrecord.Record{PodUID: s.pod.uid, Pod: s.pod.name, Plugin: s.actual.key.Plugin}
	if u := s.actual.unreadable; u != nil {
		r.Path = u.Path
	}
	return r
}

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
	// mayHide: the recovery found a record that cannot be read. It alone finds such.
	mayHide bool
}

// set replaces the known state of a volume.
func (w *actualStateOfWorld) set(s *podVolume, a actualVolume) {
	w.entries.Lock()
	defer w.entries.Unlock()
	w.replace(s, a)
}

// unpublished notes that nothing of a volume is left in its pod, and tells those that wait.
func (w *actualStateOfWorld) unpublished(s *podVolume) {
	w.entries.Lock()
	defer w.entries.Unlock()
	a := s.actual
	a.unpublished = true
	w.replace(s, a)
	s.enter(StatePending, time.Now())
	w.status.publish(s)
}

func (w *actualStateOfWorld) replace(s *podVolume, a actualVolume) {
	gone := s.actual.isPods() && !a.isPods()
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
	s.err = nil
	s.backoff.Reset()
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
	if !w.mayHide {
		return nil // each tear-down asks, which shall not cost a look at all volumes
	}
	for s := range w.entries.volumes() {
		if s.actual.unreadable != nil && s.actual.key.Plugin == plugin {
			return s.actual.unreadable
		}
	}
	return nil
}

// hiddenPrefixes are the beginnings of the unique names of volumes whose records cannot be
// read, or whose plugin is not there. The caller holds the lock.
func (w *actualStateOfWorld) hiddenPrefixes(damaged bool) (prefixes []string) {
	if damaged {
		return []string{""}
	}
	for s := range w.entries.volumes() {
		if s.actual.unreadable != nil || s.actual.record != nil && s.actual.source == "" {
			prefixes = append(prefixes, s.actual.key.Plugin+"/")
		}
	}
	return prefixes
}
