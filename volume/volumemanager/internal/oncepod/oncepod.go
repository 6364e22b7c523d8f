// Package oncepod keeps a PersistentVolume whose only access mode is ReadWriteOncePod from
// several pods of a node, as the kubelet does (KEP-2485): its words, and who waits for one.
package oncepod

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// ErrUsed is the cause of an error where another pod on this node has the PersistentVolume. It
// is set up once that pod's is torn down.
const ErrUsed volume.Cause = "another pod has the volume"

// Used says, first in the kubelet's words, that a PersistentVolume is not set up for a pod, since
// another one on this node has it.
func Used(pv string, pod, user types.NamespacedName, userUID types.UID) error {
	return &volume.Failure{
		Cause: ErrUsed, Subject: pv,
		What: fmt.Sprintf("volume uses the ReadWriteOncePod access mode and is already in use by another pod: %s is in use by pod %s (UID %s)", pv, user, userUID),
		Next: fmt.Sprintf("pod %s gets it when that one has left this node", pod),
	}
}

// Is reports whether only one pod may have a volume; nil is none.
func Is(pv *v1.PersistentVolume) bool {
	return pv != nil && slices.Equal(pv.Spec.AccessModes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod})
}

// Waiting are the volumes of pods that wait for another pod to let go of a PersistentVolume. The
// zero value: none. Its methods must not be called at the same time.
type Waiting[V comparable] struct {
	byName map[string]map[V]struct{}
	names  map[V]string
}

// Add makes a volume wait for the PersistentVolume of this name, and for no other.
func (w *Waiting[V]) Add(v V, name string) {
	w.Stop(v)
	if w.byName == nil {
		w.byName, w.names = make(map[string]map[V]struct{}), make(map[V]string)
	}
	if w.byName[name] == nil {
		w.byName[name] = make(map[V]struct{})
	}
	w.byName[name][v] = struct{}{}
	w.names[v] = name
}

// Stop makes a volume wait no longer; one that does not wait is left at that.
func (w *Waiting[V]) Stop(v V) {
	name, waits := w.names[v]
	if !waits {
		return
	}
	delete(w.names, v)
	delete(w.byName[name], v)
	if len(w.byName[name]) == 0 {
		delete(w.byName, name)
	}
}

// Take returns the volumes that have waited for a PersistentVolume, and do no longer.
func (w *Waiting[V]) Take(name string) []V {
	waited := slices.Collect(maps.Keys(w.byName[name]))
	for _, v := range waited {
		w.Stop(v)
	}
	return waited
}
