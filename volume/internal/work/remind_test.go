package work

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Two keys that fail and remind each other of it, also while both are looked at, are tried
// with a growing pause.
func TestKeysThatRemindEachOtherPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		other := map[string]string{"a": "b", "b": "a"}
		var q *Queue[string]
		q = NewQueue(Config[string]{Reconcile: func(_ context.Context, key string, _ bool) Result {
			looks.Add(1)
			time.Sleep(time.Millisecond)
			q.Remind(other[key])
			time.Sleep(time.Millisecond)
			return Result{Reason: errors.New("the other has it")}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		q.Start(ctx)
		q.Add("a")
		q.Add("b")
		time.Sleep(10 * time.Second)
		if n := looks.Load(); n > 40 {
			t.Errorf("%d looks in 10 s", n)
		}
		cancel()
		q.Wait()
	})
}

// A key that is reminded while it is looked at is looked at once more, at once, if that
// look succeeds.
func TestAReminderDuringALookIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		q := NewQueue(Config[string]{Reconcile: func(context.Context, string, bool) Result {
			looks.Add(1)
			time.Sleep(time.Second)
			return Result{}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		q.Start(ctx)
		q.Add("a")
		time.Sleep(time.Second / 2)
		q.Remind("a")
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
