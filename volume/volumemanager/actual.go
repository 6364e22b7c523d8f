package volumemanager

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// actualState is the actual state of the world: the volumes that have a record
// or an operation, by pod. The manager's mutex guards it.
type actualState map[types.UID]map[volumeKey]*actualVolume

// actualVolume is what is known about one of them.
type actualVolume struct {
	record *volume.Record // nil while none is written
	line   []byte         // the record as encoded, to see whether it changed
	status VolumeStatus
}

// volume returns the entry for key and makes it if there is none.
func (a actualState) volume(key volumeKey) *actualVolume {
	if a[key.podUID] == nil {
		a[key.podUID] = make(map[volumeKey]*actualVolume)
	}
	v, ok := a[key.podUID][key]
	if !ok {
		v = &actualVolume{}
		a[key.podUID][key] = v
	}
	return v
}

func (a actualState) remove(key volumeKey) {
	delete(a[key.podUID], key)
	if len(a[key.podUID]) == 0 {
		delete(a, key.podUID)
	}
}

// current returns a copy of what is known about the volume.
func (m *Manager) current(key volumeKey) (actualVolume, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.actual[key.podUID][key]
	if !ok {
		return actualVolume{}, false
	}
	return *v, true
}

// volumesOf returns the keys of a pod's volumes, ordered by volume name.
func (m *Manager) volumesOf(podUID types.UID) []volumeKey {
	m.mu.Lock()
	defer m.mu.Unlock()
	volumes := m.actual[podUID]
	keys := make([]volumeKey, 0, len(volumes))
	for key := range volumes {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b volumeKey) int {
		return compareStatus(volumes[a].status, volumes[b].status)
	})
	return keys
}

// publish sets a volume's status and tells the subscribers.
func (m *Manager) publish(key volumeKey, status VolumeStatus) {
	m.mu.Lock()
	m.actual.volume(key).status = status
	m.mu.Unlock()
	m.notify(status)
}
