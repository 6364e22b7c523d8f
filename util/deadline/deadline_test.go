package deadline_test

import (
	"context"
	"testing"
	"time"

	"github.com/podvol/podvol/util/deadline"
)

// The sooner end is told, as it is now, of derived contexts too.
func TestOf(t *testing.T) {
	start := time.Now()
	limited := func(ctx context.Context, d time.Duration) context.Context {
		ctx, cancel := context.WithDeadline(ctx, start.Add(d))
		t.Cleanup(cancel)
		return ctx
	}
	putOff := start.Add(time.Minute)
	movable := deadline.With(context.Background(), func() time.Time { return putOff })
	if _, ok := deadline.Of(context.Background()); ok {
		t.Error("a context without an end has one")
	}
	for _, tc := range []struct {
		ctx  context.Context
		want time.Duration
	}{
		{limited(context.Background(), time.Hour), time.Hour},
		{movable, time.Minute},
		{limited(movable, time.Hour), time.Minute},
		{limited(movable, time.Second), time.Second},
	} {
		if end, ok := deadline.Of(tc.ctx); !ok || end.Sub(start) != tc.want {
			t.Errorf("%v ends after %v, %v", tc.ctx, end.Sub(start), ok)
		}
	}
	putOff = start.Add(-time.Second)
	if end, ok := deadline.Of(context.WithoutCancel(movable)); ok {
		t.Errorf("a context that goes on ends after %v", end.Sub(start))
	}
	putOff = start.Add(2 * time.Hour)
	if end, _ := deadline.Of(movable); end != putOff {
		t.Errorf("after it was put off it ends after %v", end.Sub(start))
	}
}
