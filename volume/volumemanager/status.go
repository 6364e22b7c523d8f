package volumemanager

import (
	"errors"
	"iter"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/claimindex"
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
	"github.com/podvol/podvol/volume/volumemanager/internal/statusrows"
	"github.com/podvol/podvol/volume/volumesource"
)

// publisher tells of the volumes' states: in rows, to subscribers, and to the calls that wait.
// It belongs to the entries, whose lock its callers hold.
type publisher struct {
	plugins  *volume.VolumePluginMgr
	devices  *devices.Table
	nodeName string
	watchers map[*watcher]struct{}
	claims   claimindex.Index[*podVolume]
	leaves   func(*podState) bool // whether a pod is to go
}

// rows are the status of a directory's volumes, as far as it says it itself.
func (s *podVolume) rows() []VolumeStatus {
	r := s.describe()
	row := VolumeStatus{
		Pod: s.pod.name, PodUID: s.pod.uid, NodeName: r.NodeName, Plugin: r.Plugin, Source: r.Source, PersistentVolume: r.PersistentVolumeName(), Claim: r.Claim(), Migrated: r.Migrated, Path: r.Path, Device: r.DeviceNode(),
		State: s.state, Since: s.since, Duration: s.took, Wanted: (s.wanted || s.unused) && s.pod.wanted,
		Found:    s.actual.isFound(),
		Failures: s.backoff.Failures(), NextRetry: s.retryAt,
	}
	if s.state == StateMounted {
		row.Condition = s.condition
	}
	if s.doing != opNone {
		row.Operation, row.Began = s.doing.String(), s.began
	}
	if s.progress != nil {
		row.Progress = *s.progress
	}
	if s.ended != opRelease {
		row.Ended = s.ended.String()
	}
	rows := make([]VolumeStatus, len(s.names))
	for i, name := range s.names {
		rows[i] = row
		if s.isOthers(name) {
			removePlace(&rows[i])
		}
		rows[i].Volume = name
		rows[i].Err = s.errorOf(name)
	}
	return rows
}

// isOthers reports whether the mount was made for other volumes, which this one
// was declared to be the same as.
func (s *podVolume) isOthers(name string) bool {
	r := s.actual.record
	return r != nil && !r.Rebuilt && s.err != nil && !slices.Contains(r.Volumes, name)
}

// removePlace leaves out where a mounted volume is.
func removePlace(row *VolumeStatus) {
	row.Source, row.PersistentVolume, row.Claim, row.Path, row.Device = "", "", types.NamespacedName{}, "", ""
	if row.State == StateMounted {
		row.State = StateFailed
	}
}

// errorOf is the volume's last error, in the name of one of its volumes.
func (s *podVolume) errorOf(name string) error {
	err := s.err
	if u := s.actual.unreadable; u != nil && !errors.Is(err, error(u)) {
		err = errors.Join(u, err) // whatever else has failed since
	}
	if err == nil {
		return nil
	}
	op := "SetUp"
	if (s.state == StateFailed || s.state == StateDetached) && !(s.wanted && s.pod.wanted) {
		op = "TearDown"
	}
	r := s.describe()
	return wrap(&mountrecord.Record{Plugin: r.Plugin, Pod: s.pod.name, PodUID: s.pod.uid}, name, op, err)
}

// publish tells the subscribers and those that wait. The caller holds the
// lock.
func (p *publisher) publish(s *podVolume) {
	if len(p.watchers) > 0 {
		for _, row := range p.rows(s) {
			p.notify(row)
		}
	}
	s.pod.announce()
}

// note notes which claim a volume's rows name now. It must be called after each change of what
// they are made of. The caller holds the lock.
func (p *publisher) note(s *podVolume) {
	var claim types.NamespacedName
	if slices.Contains(s.pod.volumes, s) {
		claim = s.describe().Claim()
	}
	p.claims.Set(s, claim)
}

// show has the volume's rows say what was found about it, though it may have no record yet.
func (p *publisher) show(s *podVolume, found *mountrecord.Record) {
	s.shown = found
	p.note(s)
	p.publish(s)
}

// watcher makes a function comparable.
type watcher struct{ f func(VolumeStatus) }

// notify tells the subscribers. The caller holds the lock, so that statuses
// reach them in order, and none after stop.
func (p *publisher) notify(status VolumeStatus) {
	for watcher := range p.watchers {
		watcher.f(status)
	}
}

// leftGone tells that what another agent had left staged is in use by nobody else any more.
func (p *publisher) leftGone(plugin volume.VolumePlugin, d volume.StagedDevice) {
	p.devices.Lock.Lock()
	defer p.devices.Lock.Unlock()
	p.notify(VolumeStatus{Volume: d.Spec.Name(), Plugin: plugin.GetPluginName(), Path: d.Path, State: StateUnmounted, Found: true})
}

// rows are the status of a directory's volumes, with the state of their server and of their
// attachment. The caller holds the lock.
func (p *publisher) rows(s *podVolume) []VolumeStatus {
	rows := s.rows()
	var trouble *AttachmentError
	if s.holding != (devices.Holding{}) {
		trouble = p.attachmentTrouble(s)
	}
	health := p.healthOf(s)
	for i := range rows {
		rows[i].Server, rows[i].Attachment = health, trouble
		rows[i].Kept = !s.pod.wanted && !p.leaves(s.pod)
	}
	return rows
}

// sortedRows are the rows of several directories, by pod and volume. The caller holds the lock.
func (p *publisher) sortedRows(volumes iter.Seq[*podVolume]) (all []VolumeStatus) {
	for s := range volumes {
		all = append(all, p.rows(s)...)
	}
	slices.SortFunc(all, statusrows.Compare)
	return all
}

// doubtful are the devices that may be staged. The caller holds the lock.
func (p *publisher) doubtful() (rows []VolumeStatus) {
	for _, d := range p.devices.Doubts() {
		rows = append(rows, VolumeStatus{Volume: filepath.Base(filepath.Dir(d.Device.Path)), Plugin: d.Plugin, Path: d.Device.Path, State: StateFailed, Found: true, Err: d.Device.Err})
	}
	return rows
}

// healthOf is what the plugin knows of the volume's server; zero: it keeps no
// book, or it is not known yet which plugin and server it is.
func (p *publisher) healthOf(s *podVolume) volumesource.Health {
	r := s.describe()
	if r.Plugin == "" || r.InlineVolume == nil && r.PersistentVolume == nil {
		return volumesource.Health{}
	}
	plugin, err := p.plugins.FindPluginByName(r.Plugin)
	if err != nil {
		return volumesource.Health{}
	}
	health, _ := volumesource.HealthOf(plugin, r.Spec())
	return health
}

// Subscribe calls f with each new status of a volume until stop is called. f
// must not block and must not call the manager. After stop returns, f is not
// called any more; stop must not be called from within f.
func (m *Manager) Subscribe(f func(VolumeStatus)) (stop func()) {
	subscriber := &watcher{f}
	m.entries.Lock()
	defer m.entries.Unlock()
	m.status.watchers[subscriber] = struct{}{}
	return func() {
		m.entries.Lock()
		defer m.entries.Unlock()
		delete(m.status.watchers, subscriber)
	}
}

// Explain returns the status of every volume that is wanted, mounted, being
// worked on, failed or recorded, ordered by pod and volume. While
// [Manager.Damaged] returns an error there may be more. Rows without a pod come first: what
// another agent may have left staged, and of which nothing says which volume it is.
func (m *Manager) Explain() []VolumeStatus {
	m.entries.Lock()
	defer m.entries.Unlock()
	return append(m.status.doubtful(), m.status.sortedRows(m.entries.volumes())...)
}

// ExplainClaim returns the rows of [Manager.Explain] whose Claim is the given
// one, in its order. Its cost grows with their number only.
func (m *Manager) ExplainClaim(claim types.NamespacedName) []VolumeStatus {
	m.entries.Lock()
	defer m.entries.Unlock()
	return m.status.sortedRows(m.status.claims.Of(claim))
}

// ExplainPod returns the given pod's rows of [Manager.Explain], in its order. Its
// cost grows with their number only.
func (m *Manager) ExplainPod(podUID types.UID) []VolumeStatus {
	m.entries.Lock()
	defer m.entries.Unlock()
	if p := m.entries.pods[podUID]; p != nil {
		return m.status.sortedRows(slices.Values(p.volumes))
	}
	return nil
}
