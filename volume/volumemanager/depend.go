package volumemanager

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// watch is one object that a volume depends on.
type watch struct {
	ref  volume.ObjectRef
	stop func()
	used bool // by the operation under way
}

// dependencies are what one set-up finds its volume to depend on. An object is
// watched before it is read, so that no change goes unseen; one that does not
// exist yet is watched too.
type dependencies struct {
	operator *operator
	s        *podVolume
}

// on watches an object.
func (d dependencies) on(ref volume.ObjectRef) {
	i := slices.IndexFunc(d.s.watches, func(w watch) bool { return w.ref == ref })
	if i >= 0 {
		d.s.watches[i].used = true
		return
	}
	config := &d.operator.config
	stop := objects.WatchRef(config.Objects, config.TrustBundles, ref, func() { d.operator.dependencyChanged(d.s) })
	d.s.watches = append(d.s.watches, watch{ref: ref, stop: stop, used: true})
}

// Get implements [objects.Source] for look-ups that make the volume depend on
// what they find.
func (d dependencies) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	d.on(ref)
	return d.operator.config.Objects.Get(ctx, ref)
}

// Watch implements [objects.Source].
func (d dependencies) Watch(ref volume.ObjectRef, f func(volume.ObjectRef)) (stop func()) {
	return d.operator.config.Objects.Watch(ref, f)
}

var _ objects.Source = dependencies{}

// settle stops watching what the set-up did not ask for any more.
func (d dependencies) settle() {
	var kept, dropped []watch
	for _, w := range d.s.watches {
		if w.used {
			w.used = false
			kept = append(kept, w)
		} else {
			dropped = append(dropped, w)
		}
	}
	d.s.watches = kept
	stopAll(dropped)
}

func stopAll(watches []watch) {
	for _, w := range watches {
		w.stop()
	}
}

// refreshLater has the volume set up again when its mounter says so.
func (o *operator) refreshLater(s *podVolume, mounter volume.Mounter) {
	due := volume.RefreshAfter(mounter)
	o.mu.Lock()
	defer o.mu.Unlock()
	s.refreshAt = due
}
