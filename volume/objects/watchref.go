package objects

import "github.com/podvol/podvol/volume"

// WatchRef calls f after changes of an object, or of any object of its kind where the
// reference has no name, until stop is called. Trust bundles are watched where they are
// read: at bundles, if that is a [volume.TrustBundleWatcher]. A kind is watched only where
// the source is a [Lister]: else it cannot be read either, and f is never called. f is
// called as [Source].Watch says.
func WatchRef(source Source, bundles volume.TrustBundleGetter, ref volume.ObjectRef, f func()) (stop func()) {
	told := func(volume.ObjectRef) { f() }
	if w, ok := bundles.(volume.TrustBundleWatcher); ok && ref.Kind == "ClusterTrustBundle" {
		return w.WatchTrustBundles(f)
	}
	if ref.Name != "" {
		return source.Watch(ref, told)
	}
	if lister, ok := source.(Lister); ok {
		return lister.WatchKind(ref.Kind, told)
	}
	return func() {}
}
