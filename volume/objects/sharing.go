package objects

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
)

// Sharer is implemented by a [Writer] that keeps objects in memory and can answer without a
// copy. Absent: each answer is the caller's own. A type that embeds a Sharer and has a write of
// its own has a Sharing of its own, too.
type Sharer interface {
	// Sharing returns a writer of the same objects, whose answers are the stored objects as
	// of [Getter]: the caller must not change them.
	Sharing() Writer
}

// Sharing returns the writer for a caller that only reads the answers. It is w's
// [Sharer.Sharing] if w has one, else w.
func Sharing(w Writer) Writer {
	if s, ok := w.(Sharer); ok {
		return s.Sharing()
	}
	return w
}

// Sharing implements [Sharer].
func (s *Store) Sharing() Writer { return sharing{s} }

// sharing is a [Store] whose writes return stored objects.
type sharing struct{ store *Store }

func (s sharing) Create(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return answer(s.store.insert(ctx, object))
}

func (s sharing) Update(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return answer(s.store.replace(ctx, object))
}

func (s sharing) UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return answer(s.store.replaceStatus(ctx, object))
}

func (s sharing) Delete(ctx context.Context, ref volume.ObjectRef, preconditions Preconditions) error {
	return s.store.Delete(ctx, ref, preconditions)
}

func answer(object stored, err error) (metav1.Object, error) {
	if err != nil {
		return nil, err
	}
	return object, nil
}

// copied is [answer] for a caller who may change the object.
func copied(object stored, err error) (metav1.Object, error) {
	if err != nil {
		return nil, err
	}
	return object.DeepCopyObject().(metav1.Object), nil
}
