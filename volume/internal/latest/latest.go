// Package latest keeps the newest version of the objects that a controller works on: what
// it has seen in a cache, and what it has written, which the cache may not have yet.
package latest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// Objects is the newest version of each object of a kind that the controller has
// seen, in its cache or as the answer to a write: the cache may be behind the
// controller's own writes. Its methods may be called concurrently. Nobody may change the
// objects.
type Objects[T metav1.Object] struct {
	objects objects.Reader
	kind    string
	changed func(name types.NamespacedName, prior, now T, how Noticed)

	// Same is called with another copy of the version that was known already; nil:
	// it is not called.
	Same func(T)

	mu    sync.Mutex
	known map[types.NamespacedName]T
	// deleted has the last known version of objects that the API says are gone, while
	// the cache still has them.
	deleted map[types.NamespacedName]T
}

// Noticed says how a new version was learned of.
type Noticed int

const (
	// Seen is what a read has shown.
	Seen Noticed = iota
	// Written is the controller's own write, whose consequences for the object and
	// its pair it sees to at once.
	Written
	// Listed is of the first list, all of which is enqueued anyway.
	Listed
	// Gone is an object that is there no more.
	Gone
)

// New returns the objects of a kind, of which none is known yet. changed is called, one
// call after the other, for each version that is newer than the one before. prior is the
// zero value where there was none, now where the object is gone. It must not block.
func New[T metav1.Object](all objects.Reader, kind string, changed func(types.NamespacedName, T, T, Noticed)) *Objects[T] {
	return &Objects[T]{objects: all, kind: kind, changed: changed, known: make(map[types.NamespacedName]T), deleted: make(map[types.NamespacedName]T)}
}

// Get returns the object, or false if it is gone. A seen object counts as gone
// only when the API says so itself.
func (l *Objects[T]) Get(ctx context.Context, name types.NamespacedName) (object T, exists bool, err error) {
	object, err = objects.Get[T](ctx, l.objects, volume.ObjectRef{Kind: l.kind, NamespacedName: name})
	switch {
	case err == nil && l.isDeleted(name, object):
		var none T
		return none, false, nil
	case err == nil:
		return l.Put(object), true, nil
	case !errors.Is(err, volume.ErrNotFound):
		return object, false, err
	}
	l.forgetDeleted(name)
	if _, known := l.version(name); known {
		return l.GetLive(ctx, name)
	}
	return object, false, nil
}

// GetLive asks the API itself.
func (l *Objects[T]) GetLive(ctx context.Context, name types.NamespacedName) (object T, exists bool, err error) {
	for {
		version, known := l.version(name)
		object, err = objects.Get[T](ctx, objects.Live(l.objects), volume.ObjectRef{Kind: l.kind, NamespacedName: name})
		switch {
		case err == nil:
			return l.Put(object), true, nil
		case !errors.Is(err, volume.ErrNotFound):
			return object, false, err
		case l.forget(name, version, known):
			if _, err := objects.Get[T](ctx, l.objects, volume.ObjectRef{Kind: l.kind, NamespacedName: name}); errors.Is(err, volume.ErrNotFound) {
				l.forgetDeleted(name) // else it is when the cache tells that it is gone
			}
			return object, false, nil
		}
		// It was made while the answer was on its way.
	}
}

// Failed is for a write that has failed, and returns why. If the write may have
// taken effect, or shows that the known version is old, it reads the object anew:
// cache and queue may be late, and the controller's next step must count with it.
func (l *Objects[T]) Failed(ctx context.Context, object T, err error) error {
	name := types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
	switch {
	case errors.Is(err, objects.ErrUncertain):
		_, _, _ = l.GetLive(ctx, name) // else the cache will say so
	case errors.Is(err, objects.ErrConflict):
		now, exists, getErr := l.Get(ctx, name)
		if getErr != nil || exists && now.GetResourceVersion() == object.GetResourceVersion() && now.GetUID() == object.GetUID() {
			_, _, _ = l.GetLive(ctx, name)
		}
	}
	return err
}

// version returns the resourceVersion that is known of an object, if any.
func (l *Objects[T]) version(name types.NamespacedName) (version string, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	object, known := l.known[name]
	if !known {
		return "", false
	}
	return object.GetResourceVersion(), true
}

// Put notes a version and returns the newest.
func (l *Objects[T]) Put(object T) T { return l.note(object, Seen) }

// Wrote is Put for what the controller has written, see [Written].
func (l *Objects[T]) Wrote(object T) T { return l.note(object, Written) }

func (l *Objects[T]) note(object T, how Noticed) T {
	name := types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
	l.mu.Lock()
	defer l.mu.Unlock()
	prior, known := l.known[name]
	last, gone := l.deleted[name]
	switch {
	case gone && !known && last.GetUID() == object.GetUID() && !isNewer(object, last):
		return object // an answer that was long on its way
	case known && any(object) == any(prior):
		return object
	case known && how == Seen && object.GetResourceVersion() == prior.GetResourceVersion() && object.GetUID() == prior.GetUID():
		l.known[name] = object // the cache keeps it, so that it is not there twice
		if l.Same != nil {
			l.Same(object)
		}
		return object
	case known && !isNewer(object, prior):
		return prior
	}
	l.known[name] = object
	delete(l.deleted, name) // what the cache has is older than this now
	l.changed(name, prior, object, how)
	return object
}

// isNewer compares versions of one kind, which are in one order whichever
// object they are of; where they cannot be compared, the last word counts.
func isNewer(object, than metav1.Object) bool {
	c, err := kubeapi.CompareResourceVersion(object.GetResourceVersion(), than.GetResourceVersion())
	return err != nil || c > 0
}

// forget says that an object is gone of which this was known. It does nothing
// and reports false if something else is known by now.
func (l *Objects[T]) forget(name types.NamespacedName, version string, known bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	prior, stillKnown := l.known[name]
	switch {
	case stillKnown != known, known && prior.GetResourceVersion() != version:
		return false
	case !known:
		return true
	}
	delete(l.known, name)
	l.deleted[name] = prior
	var none T
	l.changed(name, prior, none, Gone)
	return true
}

// Gone is forget for what the answer to a write shows to be gone.
func (l *Objects[T]) Gone(object T) {
	name := types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deleted[name] = object
	if prior, known := l.known[name]; known {
		delete(l.known, name)
		var none T
		l.changed(name, prior, none, Gone)
	}
}

// isDeleted reports whether the cache's version of an object is no news of it: it was
// known before the API said that the object is gone. To learn of it again, and then
// that it is gone, would go on without a pause for as long as the cache is behind.
func (l *Objects[T]) isDeleted(name types.NamespacedName, object T) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, gone := l.deleted[name]
	if gone && (last.GetUID() != object.GetUID() || isNewer(object, last)) {
		delete(l.deleted, name)
		return false
	}
	return gone
}

func (l *Objects[T]) forgetDeleted(name types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.deleted, name)
}

// Last returns the last known version of an object, if any.
func (l *Objects[T]) Last(name types.NamespacedName) (object T, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	object, known = l.known[name]
	return object, known
}

// All returns the last known version of every object, in no order.
func (l *Objects[T]) All() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.known))
}

// Fill learns of all objects.
func (l *Objects[T]) Fill(ctx context.Context) ([]T, error) {
	list, err := objects.List[T](ctx, l.objects, l.kind, metav1.NamespaceAll)
	if err != nil {
		return nil, err
	}
	for _, object := range list {
		l.note(object, Listed)
	}
	return list, nil
}

// CatchUp notes what the API itself has, and returns what it has no more, in
// order.
func (l *Objects[T]) CatchUp(ctx context.Context) (news bool, missing []volume.ObjectRef, err error) {
	before := l.All()
	list, err := objects.List[T](ctx, objects.Live(l.objects), l.kind, metav1.NamespaceAll)
	if err != nil {
		return false, nil, err
	}
	stored := make(map[types.NamespacedName]bool, len(list))
	for _, object := range list {
		name := types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
		stored[name] = true
		prior, known := l.Last(name)
		news = news || !known || isNewer(object, prior)
		l.Put(object)
	}
	for _, object := range before {
		if name := (types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}); !stored[name] {
			missing = append(missing, volume.ObjectRef{Kind: l.kind, NamespacedName: name})
		}
	}
	slices.SortFunc(missing, func(a, b volume.ObjectRef) int { return cmp.Compare(a.String(), b.String()) })
	return news, missing, nil
}
