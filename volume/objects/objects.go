// Package objects has the interfaces to API objects: pods, claims, volumes,
// secrets, config maps and the rest.
//
//   - [Source] reads one object at a time. It is all that a node needs.
//   - [Lister] reads whole kinds.
//   - [Writer] changes objects.
//
// The package's own [Store] is all three in memory, for one machine and for
// tests. objects/manifest fills it from files.
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
	// Get returns the object. The caller must not change it. The errors:
	//
	//   - It matches [volume.ErrNotFound] if the object does not exist.
	//   - It matches [ErrNotSynced] if that is not known yet.
	//   - Every other error is a failed look-up and says nothing about existence.
	Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error)
	// Watch calls f after the object was created, changed or deleted, until stop
	// is called. f must not block. Several calls may become one. f is not called
	// after stop has returned. stop may be called twice, but not from within f.
	Watch(ref volume.ObjectRef, f func(volume.ObjectRef)) (stop func())
}

// Lister reads whole kinds. An empty namespace means all namespaces. Cluster-wide
// kinds take only the empty one.
type Lister interface {
	// List returns the objects in order of namespace and name. The caller must
	// not change them.
	List(ctx context.Context, kind, namespace string) ([]metav1.Object, error)
	// WatchKind is [Source].Watch for all objects of a kind.
	WatchKind(kind string, f func(volume.ObjectRef)) (stop func())
}

// Writer changes objects.
//
//   - The passed object may carry a UID or a resourceVersion. Then the stored
//     object must carry the same, or the error matches [ErrConflict]. Without
//     them the last writer wins.
//   - A Writer keeps a copy of its argument, and returns a copy of the stored
//     object, unless it is one of [Sharing].
//   - If the object to change does not exist, the error matches
//     [volume.ErrNotFound].
//   - On an error nothing has changed, unless the error matches [ErrUncertain].
//   - All methods are safe for concurrent use. Writes of one object happen one
//     after the other.
type Writer interface {
	// Create stores a new object. If it exists, the error matches [ErrExists].
	Create(ctx context.Context, object metav1.Object) (metav1.Object, error)
	// Update replaces everything but the status. An object that is being deleted
	// can lose finalizers but gain none. The object is gone with its last
	// finalizer; then Update returns its last state.
	Update(ctx context.Context, object metav1.Object) (metav1.Object, error)
	// UpdateStatus replaces only the status. An API server also takes the labels,
	// the annotations and the finalizers. So pass the object as it was read, with
	// its resourceVersion.
	UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error)
	// Delete removes the object. An object with finalizers gets a deletion
	// timestamp instead, and keeps the timestamp of the first call.
	Delete(ctx context.Context, ref volume.ObjectRef, preconditions Preconditions) error
}

// Loader takes objects over from another store, unchanged. Only stores that keep
// objects in memory alone have it.
type Loader interface {
	// Load puts objects into the store as they are, with UID, status and times. A
	// deletion that waits for finalizers keeps its time, too.
	//
	//   - They get new resourceVersions, and so do all later changes. These are
	//     above floor, and above all that this store has given before.
	//   - Load puts all objects into the store or, on an error, none.
	//   - If an object exists, or is given twice, the error matches [ErrExists].
	//   - If an object has no UID, or is deleted and has no finalizers, the error
	//     is a *[volume.InvalidSpecError].
	//   - Load copies the objects. It is safe for concurrent use. It notifies the
	//     watchers of the objects.
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
	// ErrConflict says that the stored object is another one, or another version
	// of it, than the writer passed.
	ErrConflict = errors.New("the object has changed")
	// ErrExists says that an object to be created exists already.
	ErrExists = errors.New("already exists")
	// ErrUncertain says that a write may have taken effect, or may still do so. Its
	// answer was lost, for example by a timeout or a broken connection.
	//
	// To be certain, read the object, not from a cache, and write again with that
	// version as precondition. Then only one of the two writes takes effect.
	//
	// The error may match [ErrExists], [ErrConflict] or [volume.ErrNotFound], too: a
	// write that was repeated on the way may meet its own first attempt.
	ErrUncertain = errors.New("the write may have taken effect")
)

// Client reads, watches, lists and writes objects: what a controller needs of a store.
type Client interface {
	Source
	Lister
	Writer
}
