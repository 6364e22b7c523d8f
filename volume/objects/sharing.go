package objects

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
)

// Sharer is implemented by a [Writer] that keeps objects in memory and can answer without a
// copy. Absent: each answer is the caller's own.
type Sharer interface {
	// Sharing returns a writer of the same objects, whose answers are the stored objects as
	// of [Getter]: the caller must not change them. Outer is the writer that was asked. If that
	// is another one, which embeds this one, the result is outer: its own writes must be called.
	Sharing(outer Writer) Writer
}

// Sharing returns the writer for a caller that only reads the answers. It is w's
// [Sharer.Sharing] if w has one, else w.
func Sharing(w Writer) Writer {
	if s, ok := w.(Sharer); ok {
		return s.Sharing(w)
	}
	return w
}

// Sharing implements [Sharer].
func (s *Store) Sharing(outer Writer) Writer {
	if outer != Writer(s) {
		return outer
	}
	return sharing{s}
}

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

// copied is [answer] with a copy, which the caller may change.
func copied(object stored, err error) (metav1.Object, error) {
	if err != nil {
		return nil, err
	}
	return object.DeepCopyObject().(metav1.Object), nil
}
