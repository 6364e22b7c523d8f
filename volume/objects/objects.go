// Package objects says where API objects come from: pods, claims, volumes,
// secrets, config maps and the rest.
//
// A node reads through [Source], one object at a time; what works on whole
// kinds also needs [Lister], and only what changes objects needs [Writer]. The
// package's own [Store] is all three in memory, for one machine and for tests;
// objects/manifest fills it from files.
package objects

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// Source reads single objects. Kinds are named as in manifests: "Secret",
// "PersistentVolumeClaim". All methods are safe for concurrent use.
type Source interface {
	// Get returns the object; the caller must not change it. An object that
	// does not exist is an error that matches [volume.ErrNotFound]; one that
	// cannot be told yet matches [ErrNotSynced]; every other error is a failed
	// look-up and says nothing about existence.
	Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error)
	// Watch calls f after the object was created, changed or deleted, until
	// stop is called. f must not block; calls may be coalesced. After stop
	// returns f is not called any more. stop may be called twice, but not from
	// within f.
	Watch(ref volume.ObjectRef, f func(volume.ObjectRef)) (stop func())
}

// Lister reads whole kinds. An empty namespace means all namespaces, and is
// the only one for cluster-wide kinds.
type Lister interface {
	// List returns the objects in order of namespace and name; the caller must
	// not change them.
	List(ctx context.Context, kind, namespace string) ([]metav1.Object, error)
	// WatchKind is [Source].Watch for all objects of a kind.
	WatchKind(kind string, f func(volume.ObjectRef)) (stop func())
}

// Writer changes objects. Where the object passed carries a UID or a
// resourceVersion, the stored object must carry the same, else the error
// matches [ErrConflict]; where it carries none, the last writer wins. Writers keep
// a copy of their argument and return a copy of what is stored. What is to be
// changed and does not exist matches [volume.ErrNotFound]. On an error nothing has
// changed, unless it matches [ErrUncertain]. All methods are safe for concurrent
// use, and writes of one object happen one after the other.
type Writer interface {
	// Create stores a new object; if it exists the error matches [ErrExists].
	Create(ctx context.Context, object metav1.Object) (metav1.Object, error)
	// Update replaces everything but the status. Of an object that is being deleted
	// it can take finalizers, but give it none; with the last one the object is gone,
	// and what is returned is its last state.
	Update(ctx context.Context, object metav1.Object) (metav1.Object, error)
	// UpdateStatus replaces the status alone. An API server takes the labels, the
	// annotations and the finalizers along: pass the object as it was read, with its
	// resourceVersion.
	UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error)
	// Delete removes the object; while it has finalizers it only gets a
	// deletion timestamp, and keeps that of the first call.
	Delete(ctx context.Context, ref volume.ObjectRef, preconditions Preconditions) error
}

// Loader takes objects over as they were in another store. Only stores that keep
// nothing themselves have it.
type Loader interface {
	// Load puts objects into the store as they are: with UID, status and times, also
	// that of a deletion that waits for finalizers. Their resourceVersions are new
	// ones, as are those of all later changes: above floor, and above all that this
	// store has given before.
	//
	// All are loaded or, on an error, none. An object that exists, or is given twice,
	// matches [ErrExists]; one without UID, or that nothing keeps from its deletion,
	// is a *[volume.InvalidSpecError]. The objects are copied. Load is safe for
	// concurrent use; watchers hear of what is loaded.
	Load(ctx context.Context, floor uint64, all ...metav1.Object) error
}

// Preconditions of a deletion; empty fields are not checked.
type Preconditions struct {
	UID             types.UID
	ResourceVersion string
}

var (
	// ErrNotSynced says that the source does not know yet whether the object
	// exists.
	ErrNotSynced = errors.New("not synced yet")
	// ErrConflict says that the stored object is another one, or another
	// version of it, than the writer believed.
	ErrConflict = errors.New("the object has changed")
	// ErrExists says that an object to be created exists already.
	ErrExists = errors.New("already exists")
	// ErrUncertain says of a write that it may have taken effect, or may do so yet:
	// its answer was lost, as by a timeout or a broken connection. Who must know
	// reads the object, not from a cache, and writes again with the version found
	// there as precondition: then one of the two writes takes effect, not both. The
	// error that it is wrapped with may match [ErrExists], [ErrConflict] or
	// [volume.ErrNotFound], where the write was repeated on the way and has met
	// itself.
	ErrUncertain = errors.New("the write may have taken effect")
)
