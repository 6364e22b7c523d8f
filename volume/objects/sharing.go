package objects

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
)

// Sharer is implemented by a [Writer] that keeps objects in memory and can do so without
// copies. Absent: it copies what it is given, and each answer is the caller's own.
type Sharer interface {
	// Sharing returns a writer of the same objects that shares memory with its callers. They
	// must change neither what they have given it, as far as that is in other memory than the
	// object itself (maps, slices and pointers), nor its answers, which are the stored
	// objects as of [Getter]. Outer is the writer that was asked. If that is another one,
	// which embeds this one, the result is outer: its own writes must be called.
	Sharing(outer Writer) Writer
}

// Sharing returns the writer for a caller that changes nothing of what it has given or got. It
// is w's [Sharer.Sharing] if w has one, else w.
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

// sharing is a [Store] that copies of an object nothing but its outermost part.
type sharing struct{ store *Store }

func (s sharing) Create(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return answer(s.store.insert(ctx, object, adopt))
}

func (s sharing) Update(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return answer(s.store.replace(ctx, object, adopt))
}

func (s sharing) UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return answer(s.store.replaceStatus(ctx, object, func(k kind) func(stored, metav1.Object) { return k.status.share }))
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
