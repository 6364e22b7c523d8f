// Package dependencies watches the objects that a volume depends on: its claim and
// PersistentVolume, and what its plugin reads. It knows nothing of pods and operations.
package dependencies

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// Set is the watched objects of one volume. The zero value: none. One goroutine at a time may
// use it, the operation under way for example.
type Set struct{ watches []watch }

// watch is one object that a volume depends on.
type watch struct {
	ref  volume.ObjectRef
	stop func()
	used bool // by the operation under way
}

// Finder is what one set-up finds its volume to depend on. An object is
// watched before it is read, so that no change goes unseen; one that does not
// exist yet is watched too.
type Finder struct {
	// Set is the volume's.
	Set *Set
	// Objects and TrustBundles are where objects are read from; see objects.WatchRef.
	Objects      objects.Source
	TrustBundles volume.TrustBundleGetter
	// Changed is called when an object has changed. It may call from any goroutine.
	Changed func()
}

var _ objects.Source = Finder{}

// On watches an object.
func (f Finder) On(ref volume.ObjectRef) {
	i := slices.IndexFunc(f.Set.watches, func(w watch) bool { return w.ref == ref })
	if i >= 0 {
		f.Set.watches[i].used = true
		return
	}
	stop := objects.WatchRef(f.Objects, f.TrustBundles, ref, f.Changed)
	f.Set.watches = append(f.Set.watches, watch{ref: ref, stop: stop, used: true})
}

// Get implements [objects.Source] for look-ups that make the volume depend on
// what they find.
func (f Finder) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	f.On(ref)
	return f.Objects.Get(ctx, ref)
}

// Watch implements [objects.Source].
func (f Finder) Watch(ref volume.ObjectRef, changed func(volume.ObjectRef)) (stop func()) {
	return f.Objects.Watch(ref, changed)
}

// StopUnused stops watching what the set-up did not ask for any more.
func (f Finder) StopUnused() {
	var kept, dropped Set
	for _, w := range f.Set.watches {
		if w.used {
			w.used = false
			kept.watches = append(kept.watches, w)
		} else {
			dropped.watches = append(dropped.watches, w)
		}
	}
	*f.Set = kept
	dropped.Stop()
}

// IsEmpty reports whether nothing is watched.
func (s *Set) IsEmpty() bool { return len(s.watches) == 0 }

// Take empties the set, and returns what it was, which is to be stopped.
func (s *Set) Take() Set {
	taken := *s
	*s = Set{}
	return taken
}

// Add takes another set's watches over.
func (s *Set) Add(other Set) { s.watches = append(s.watches, other.watches...) }

// Stop ends all watches. It may wait for a call of [Finder].Changed.
func (s Set) Stop() {
	for _, w := range s.watches {
		w.stop()
	}
}
