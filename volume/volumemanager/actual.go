package volumemanager

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// actualState is the actual state of the world, by pod. The manager's mutex
// guards it.
type actualState map[types.UID]*actualPod

// actualPod is what is known about the volumes of one pod.
type actualPod struct {
	// mounts are the directories that have a record, or are about to.
	mounts map[volumeKey]*actualVolume
	// rows are the last known status of each of the pod's volumes by name,
	// also of those that never came as far as a directory.
	rows map[string]VolumeStatus
}

// actualVolume is one directory.
type actualVolume struct {
	record *volume.Record // nil where it cannot be read
	line   []byte         // the record as encoded, to see whether it changed
	source string         // the plugin's name of the source, to see whether it changed
	// unreadable says why the record cannot be read; then the volume is left
	// alone.
	unreadable *UnreadableRecordError
}

// pod returns the entry for a pod and makes it if there is none.
func (a actualState) pod(uid types.UID) *actualPod {
	p, ok := a[uid]
	if !ok {
		p = &actualPod{mounts: make(map[volumeKey]*actualVolume), rows: make(map[string]VolumeStatus)}
		a[uid] = p
	}
	return p
}

// tidy drops a pod of which nothing is known any more.
func (a actualState) tidy(uid types.UID) {
	if p, ok := a[uid]; ok && len(p.mounts) == 0 && len(p.rows) == 0 {
		delete(a, uid)
	}
}

// mounted returns a copy of what is known about a directory.
func (m *Manager) mounted(key volumeKey) (actualVolume, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, ok := m.actual[key.podUID]; ok {
		if v, ok := p.mounts[key]; ok {
			return *v, true
		}
	}
	return actualVolume{}, false
}

// set replaces what is known about a directory; the zero value removes it.
func (m *Manager) set(key volumeKey, v actualVolume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.actual.pod(key.podUID)
	if v.record == nil && v.unreadable == nil {
		delete(p.mounts, key)
		m.actual.tidy(key.podUID)
		return
	}
	p.mounts[key] = &v
}

// mountsOf returns the keys of a pod's directories, in a stable order.
func (m *Manager) mountsOf(podUID types.UID) []volumeKey {
	m.mu.Lock()
	defer m.mu.Unlock()
	var keys []volumeKey
	if p, ok := m.actual[podUID]; ok {
		for key := range p.mounts {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

// publish sets a volume's status and tells the subscribers. A volume that is
// gone has no row any more.
func (m *Manager) publish(status VolumeStatus) {
	m.mu.Lock()
	if status.State == StateUnmounted {
		if p, ok := m.actual[status.PodUID]; ok {
			delete(p.rows, status.Volume)
			m.actual.tidy(status.PodUID)
		}
	} else {
		m.actual.pod(status.PodUID).rows[status.Volume] = status
	}
	m.mu.Unlock()
	m.notify(status)
}

// rowsOf returns the rows of a pod's volumes with these names, or of all of
// them where none are given.
func (m *Manager) rowsOf(podUID types.UID, names ...string) []VolumeStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var rows []VolumeStatus
	p, ok := m.actual[podUID]
	if !ok {
		return nil
	}
	for name, row := range p.rows {
		if len(names) == 0 || slices.Contains(names, name) {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, compareStatus)
	return rows
}
