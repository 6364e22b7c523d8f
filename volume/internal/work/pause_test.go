package work

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Two keys that fail and enqueue each other after a pause, also while both run, are retried
// with a growing pause.
func TestKeysThatEnqueueEachOtherPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		other := map[string]string{"a": "b", "b": "a"}
		var q *Queue[string]
		q = NewQueue(Config[string]{Reconcile: func(_ context.Context, key string) Result {
			looks.Add(1)
			time.Sleep(time.Millisecond)
			q.EnqueueAfterPause(other[key])
			time.Sleep(time.Millisecond)
			return Result{Reason: errors.New("the other has it")}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		q.Start(ctx)
		q.Enqueue("a")
		q.Enqueue("b")
		time.Sleep(10 * time.Second)
		if n := looks.Load(); n > 40 {
			t.Errorf("%d looks in 10 s", n)
		}
		cancel()
		q.Wait()
	})
}

// A key that is enqueued after a pause while it is reconciled is reconciled once more, at
// once, if the first call succeeds.
func TestAKeyEnqueuedDuringItsWorkIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		q := NewQueue(Config[string]{Reconcile: func(context.Context, string) Result {
			looks.Add(1)
			time.Sleep(time.Second)
			return Result{}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		q.Start(ctx)
		q.Enqueue("a")
		time.Sleep(time.Second / 2)
		q.EnqueueAfterPause("a")
		time.Sleep(time.Minute)
		if n := looks.Load(); n != 2 {
			t.Errorf("%d looks", n)
		}
		cancel()
		q.Wait()
		if len(q.states) != 0 || q.Activity.n != 0 {
			t.Errorf("%d keys are left, %d active", len(q.states), q.Activity.n)
		}
	})
}
