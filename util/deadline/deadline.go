// Package deadline tells when a context ends whose end can be put off. A Deadline of
// [context.Context] must not change: contexts that are derived rely on it.
//
// Like every package below util, it carries no promise of compatibility.
package deadline

import (
	"context"
	"time"
)

type key struct{}

// With returns a context that ends with ctx, and of which [Of] says that it ends at the time
// that end returns. It is the caller's duty that it does. The function may be called from
// several goroutines.
func With(ctx context.Context, end func() time.Time) context.Context {
	return context.WithValue(ctx, key{}, end)
}

// Of returns when a context ends if its end is not put off: by its Deadline, or by a [With],
// by the one that comes sooner. The result is false if neither says it. A time of a With that
// is over does not count: ctx does not end by it, as after [context.WithoutCancel].
func Of(ctx context.Context) (end time.Time, ok bool) {
	end, ok = ctx.Deadline()
	if f, has := ctx.Value(key{}).(func() time.Time); has {
		if at := f(); time.Until(at) > 0 && (!ok || at.Before(end)) {
			end, ok = at, true
		}
	}
	return end, ok
}
