package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// entry is one watched object: the store that its reflector fills.
type entry struct {
	ref      volume.ObjectRef
	owner    *keyed
	end      context.CancelFunc
	ended    <-chan struct{}               // closed by end
	watchers map[*objects.Watcher]struct{} // guarded by owner.mu

	mu       sync.Mutex
	answered chan struct{} // closed with the first answer or failure
	synced   bool
	object   metav1.Object // nil: does not exist
	err      error         // of the last look-up, until the first one succeeds
}

var _ cache.ReflectorStore = (*entry)(nil)

// errUnwatched says that there will be no answer, because the object has no
// watcher any more.
var errUnwatched = errors.New("it is not watched any more")

// get returns the last known state. It waits for the first one for at most wait.
func (e *entry) get(ctx context.Context, wait time.Duration) (metav1.Object, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, fmt.Errorf("get %s: %w: the API has not answered within %s", e.ref, objects.ErrNotSynced, wait))
	defer cancel()
	select {
	case <-e.answered:
		return e.last()
	case <-e.ended:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case <-e.answered: // that was why it ended: it cannot change
		return e.last()
	default:
		return nil, errUnwatched
	}
}

func (e *entry) last() (metav1.Object, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !e.synced:
		return nil, e.err
	case e.object == nil:
		return nil, &volume.ObjectNotFoundError{Ref: e.ref}
	}
	return e.object, nil
}

// fail keeps the error of a look-up, for callers that wait for the first state.
// The error does not say that the object is missing. A known state stays.
func (e *entry) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.synced {
		e.err = err
		e.answer()
	}
}

// answer wakes the callers that wait for the first answer. e is locked.
func (e *entry) answer() {
	select {
	case <-e.answered:
	default:
		close(e.answered)
	}
}

// Add implements the reflector's store.
func (e *entry) Add(item any) error { return e.take(item, false) }

// Update implements the reflector's store.
func (e *entry) Update(item any) error { return e.take(item, false) }

// Delete implements the reflector's store.
func (e *entry) Delete(item any) error { return e.take(item, true) }

// Resync implements the reflector's store; there is nothing behind it.
func (e *entry) Resync() error { return nil }

// Replace implements the reflector's store: the list is all there is.
func (e *entry) Replace(list []any, _ string) error {
	for _, item := range list {
		object, err := meta.Accessor(item)
		if err != nil {
			return err
		}
		if e.isOf(object) {
			e.set(object)
			return nil
		}
	}
	e.set(nil)
	return nil
}

// isOf checks an object of the server. It is true of all objects if the server
// supports the field selector.
func (e *entry) isOf(object metav1.Object) bool {
	return object.GetName() == e.ref.Name && object.GetNamespace() == e.ref.Namespace
}

func (e *entry) take(item any, deleted bool) error {
	object, err := meta.Accessor(item)
	switch {
	case err != nil:
		return err
	case !e.isOf(object):
	case deleted:
		e.set(nil)
	default:
		e.set(object)
	}
	return nil
}

// set stores the API's state of the object and reports whether it is new.
func (e *entry) set(object metav1.Object) (news bool) {
	if !e.exchange(object) {
		return false
	}
	if isImmutable(object) {
		e.end() // it cannot change any more
	}
	e.owner.tell(e)
	return true
}

func (e *entry) exchange(object metav1.Object) (news bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	news = !e.synced || !sameState(e.object, object)
	e.object, e.synced, e.err = object, true, nil
	e.answer()
	return news
}

func sameState(a, b metav1.Object) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return sameVersion(a, b)
}

func isImmutable(object metav1.Object) bool {
	var immutable *bool
	switch o := object.(type) {
	case *v1.Secret:
		immutable = o.Immutable
	case *v1.ConfigMap:
		immutable = o.Immutable
	}
	return immutable != nil && *immutable
}
