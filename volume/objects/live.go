package objects

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
)

// Reader reads objects, without watching them. Its methods are those of
// [Source] and [Lister].
type Reader interface {
	Getter
	KindReader
}

// Getter reads single objects: [Source] without its watch.
type Getter interface {
	Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error)
}

// KindReader reads whole kinds: [Lister] without its watch.
type KindReader interface {
	List(ctx context.Context, kind, namespace string) ([]metav1.Object, error)
}

// Cached is implemented by a [Source] and [Lister] that answers from a cache,
// as informers do, and so may be behind. Absent: it is never behind, as [Store].
type Cached interface {
	// Live returns a reader that asks the API itself: slower, but what it
	// answers was true when it was asked. It is safe for concurrent use.
	Live() Reader
}

// Live returns the reader to ask before something is done that cannot be
// undone: r's [Cached.Live] if it has one, else r.
func Live(r Reader) Reader {
	if c, ok := r.(Cached); ok {
		return c.Live()
	}
	return r
}
