package csi

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// volumeCache is what the plugin has learnt of volumes. Its zero value is ready.
type volumeCache struct {
	tokens issued

	mu sync.Mutex
	// sources are those of specs that were seen. The caller's records are read at
	// start, so that they are known before a teardown. They make up for a lost
	// vol_data.json.
	sources map[knownKey]identity
	// keys are those of each source.
	keys map[identity][]knownKey
	// doubtful are publishings that may not be complete though something is mounted.
	doubtful map[string]bool
	// attached has the attachments' metadata of staged volumes, by the place of staging.
	attached map[string]map[string]string
}

// identity is what a driver needs to undo its work.
type identity struct {
	driver, handle string
	inline         bool
}

// knownKey is a spec's name, with the pod's UID for an inline volume; or the path of a
// device.
type knownKey struct {
	name string
	pod  types.UID
}

// remember keeps what a persistent spec says of its volume.
func (k *volumeCache) remember(p *Plugin, spec *volume.Spec, s *source) {
	if s.Inline {
		return // the pod is not known here
	}
	k.put(s, knownKey{name: spec.Name()}, knownKey{name: p.disk.GlobalMount(s)})
}

func (k *volumeCache) put(s *source, keys ...knownKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sources == nil {
		k.sources, k.keys = make(map[knownKey]identity), make(map[identity][]knownKey)
	}
	is := identity{s.Driver, s.Handle, s.Inline}
	for _, key := range keys {
		if before, ok := k.sources[key]; ok && before == is {
			continue
		}
		k.drop(key)
		k.sources[key] = is
		k.keys[is] = append(k.keys[is], key)
	}
}

// drop forgets a key. The caller holds the lock.
func (k *volumeCache) drop(key knownKey) {
	is, ok := k.sources[key]
	if !ok {
		return
	}
	delete(k.sources, key)
	left := slices.DeleteFunc(k.keys[is], func(other knownKey) bool { return other == key })
	if len(left) == 0 {
		delete(k.keys, is)
	} else {
		k.keys[is] = left
	}
}

func (k *volumeCache) find(key knownKey) (identity, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	found, ok := k.sources[key]
	return found, ok
}

// forget drops what was remembered for keys.
func (k *volumeCache) forget(keys ...knownKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		k.drop(key)
	}
}

// forgetDevice drops a device and the volumes that are on it.
func (k *volumeCache) forgetDevice(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	gone, ok := k.sources[knownKey{name: path}]
	if !ok {
		return
	}
	for _, key := range k.keys[gone] {
		delete(k.sources, key)
	}
	delete(k.keys, gone)
}

// doubt says whether a publishing is in doubt, and returns what was said before.
func (k *volumeCache) doubt(path string, doubtful bool) (was bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	was = k.doubtful[path]
	if k.doubtful == nil {
		k.doubtful = make(map[string]bool)
	}
	if doubtful {
		k.doubtful[path] = true
	} else {
		delete(k.doubtful, path)
	}
	return was
}

func (k *volumeCache) isDoubtful(path string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.doubtful[path]
}

// attachedAs returns the attachment's metadata of the volume that is staged at a place.
func (k *volumeCache) attachedAs(place string) (metadata map[string]string, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	metadata, known = k.attached[place]
	return metadata, known
}

// attach keeps the attachment's metadata of a volume that is or will be staged at a place.
func (k *volumeCache) attach(place string, metadata map[string]string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.attached == nil {
		k.attached = make(map[string]map[string]string)
	}
	k.attached[place] = metadata
}

// detach forgets it.
func (k *volumeCache) detach(place string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.attached, place)
}
