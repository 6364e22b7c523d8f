package objects

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
)

// Reader reads objects and does not watch them. Its methods come from [Source]
// and [Lister].
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

// Cached is implemented by a [Source] and [Lister] that answers from a cache, as
// informers do. Its answers may be old. Absent: the answers are current, like
// [Store]'s.
type Cached interface {
	// Live returns a reader that sends each request to the API itself. It is
	// slower, but its answers were true at the time of the request. It is safe
	// for concurrent use.
	Live() Reader
}

// Live returns the reader to use before an action that cannot be undone. It is
// r's [Cached.Live] if r has one, else r.
func Live(r Reader) Reader {
	if c, ok := r.(Cached); ok {
		return c.Live()
	}
	return r
}
