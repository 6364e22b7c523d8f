package work

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/volume"
)

// An event of an object meanwhile, such as one of a write before the failure, neither ends
// the pause nor takes its place. A change of the object does.
func TestARefreshDoesNotEndAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var all []string
		q := NewQueue(Config[volume.ObjectRef]{Workers: 4, Reconcile: func(context.Context, volume.ObjectRef) Result {
			all = append(all, fmt.Sprintf("reconciled at %v", time.Since(start)))
			if len(all) < 4 {
				return Result{Reason: errors.New("broken")}
			}
			return Result{}
		}, Refresh: func(context.Context, volume.ObjectRef) Result {
			all = append(all, fmt.Sprintf("refreshed at %v", time.Since(start)))
			return Result{}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		q.Start(ctx)
		key := volume.NewObjectRef("PersistentVolume", "", "pv")
		q.Enqueue(key)
		time.Sleep(4 * time.Millisecond)
		q.EnqueueIfChanged(key)
		time.Sleep(16 * time.Millisecond) // it has failed again, after 10 ms
		q.Enqueue(key)
		time.Sleep(time.Hour)
		cancel()
		q.Wait()
		want := []string{"reconciled at 0s", "refreshed at 4ms", "reconciled at 10ms", "reconciled at 20ms"}
		if !slices.Equal(all, want) {
			t.Errorf("it was worked on at %v, want %v", all, want)
		}
		if len(q.states) != 0 || q.Activity.n != 0 {
			t.Errorf("%d keys are left, %d active", len(q.states), q.Activity.n)
		}
	})
}

// A key is never worked on twice at the same time, and every addition is
// followed by a reconciliation.
func TestAKeyIsWorkedOnByOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running := 0
		var added time.Time
		var reconciled atomic.Int64 // when the last call of Reconcile began
		refresh := func(context.Context, volume.ObjectRef) Result {
			if running++; running != 1 {
				t.Errorf("%d at a time", running)
			}
			time.Sleep(time.Second)
			running--
			return Result{}
		}
		reconcile := func(ctx context.Context, ref volume.ObjectRef) Result {
			reconciled.Store(time.Now().UnixNano())
			return refresh(ctx, ref)
		}
		q := NewQueue(Config[volume.ObjectRef]{Workers: 8, Reconcile: reconcile, Refresh: refresh})
		ctx, cancel := context.WithCancel(t.Context())
		q.Start(ctx)
		key := volume.NewObjectRef("PersistentVolume", "", "pv")
		for range 10 {
			q.EnqueueIfChanged(key)
			time.Sleep(time.Second / 4)
			q.Enqueue(key)
			added = time.Now()
			time.Sleep(2 * time.Second) // one call may be under way, the next follows
			if reconciled.Load() < added.UnixNano() {
				t.Errorf("after %v it was not reconciled", added)
			}
			time.Sleep(time.Second / 4)
		}
		time.Sleep(time.Minute)
		cancel()
		q.Wait()
		if len(q.states) != 0 || q.Activity.n != 0 {
			t.Errorf("%d keys are left, %d active", len(q.states), q.Activity.n)
		}
	})
}

// A result that says when is heeded, whatever else it says; an addition comes before it, and
// a key that is forgotten is not reconciled again.
func TestAResultSaysWhenToLookAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		q := NewQueue(Config[string]{Reconcile: func(context.Context, string) Result {
			at = append(at, time.Since(start))
			return Result{After: time.Minute, Reason: errors.New("its contents expire")}
		}})
		q.Enqueue("volume")
		ctx, cancel := context.WithCancel(t.Context())
		q.Start(ctx)
		time.Sleep(90 * time.Second)
		q.Enqueue("volume")
		time.Sleep(time.Minute + time.Second)
		q.Forget("volume")
		time.Sleep(time.Hour)
		cancel()
		q.Wait()
		want := []time.Duration{0, time.Minute, 90 * time.Second, 150 * time.Second}
		if !slices.Equal(at, want) {
			t.Errorf("it was looked at after %v, want %v", at, want)
		}
		if len(q.states) != 0 || q.Activity.n != 0 {
			t.Errorf("%d keys are left, %d active", len(q.states), q.Activity.n)
		}
	})
}

// Without a limit each key has a goroutine of its own: one that hangs keeps no other waiting.
func TestWithoutALimitNoKeyWaitsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, looked := make(chan struct{}), 0
		var mu sync.Mutex
		q := NewQueue(Config[int]{Reconcile: func(_ context.Context, key int) Result {
			if key < 100 {
				<-release
			}
			mu.Lock()
			defer mu.Unlock()
			looked++
			return Result{}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		q.Start(ctx)
		for key := range 200 {
			q.Enqueue(key)
		}
		synctest.Wait()
		mu.Lock()
		if looked != 100 {
			t.Errorf("%d were looked at beside 100 that hang", looked)
		}
		mu.Unlock()
		close(release)
		synctest.Wait()
		cancel()
		q.Wait()
		if looked != 200 {
			t.Errorf("%d were looked at in the end", looked)
		}
	})
}

// What is queued, or waits, when the context ends is not active any more, and neither is what
// is added later: a caller that waits for no activity is not kept for ever.
func TestNothingIsActiveAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faster := errors.New("another client was faster")
		q := NewQueue(Config[string]{Workers: 1, Conflict: faster, Reconcile: func(ctx context.Context, key string) Result {
			if key == "conflict" {
				return Result{Reason: fmt.Errorf("update: %w", faster)}
			}
			<-ctx.Done()
			return Result{Reason: ctx.Err()}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		q.Start(ctx)
		q.Enqueue("conflict")
		synctest.Wait()
		for _, key := range []string{"runs", "queued", "runs", "too"} {
			q.Enqueue(key)
		}
		synctest.Wait()
		if q.Activity.n != 4 {
			t.Errorf("%d are active before the end", q.Activity.n)
		}
		cancel()
		synctest.Wait()
		select {
		case <-q.Activity.Idle():
		default:
			t.Errorf("%d are active after the end", q.Activity.n)
		}
		q.Wait()
		q.Enqueue("late")
		q.EnqueueIfChanged("later")
		q.EnqueueAfterPause("last")
		<-q.Activity.Idle()
		if len(q.states) != 0 || len(q.ready) != 0 {
			t.Errorf("%d keys are left, %d queued", len(q.states), len(q.ready))
		}
	})
}

// A queue that was never started can be waited for, and its keys are not active.
func TestAQueueThatNeverBegan(t *testing.T) {
	q := NewQueue(Config[string]{})
	q.Enqueue("key")
	q.Wait()
	<-q.Activity.Idle()
}

// A timer that was stopped too late, since it waited for the lock already, neither brings back
// a key that was forgotten nor ends a pause that began since.
func TestAStaleTimerHasNoEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		q := NewQueue(Config[string]{Reconcile: func(context.Context, string) Result {
			looks++
			return Result{After: time.Hour}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		q.Start(ctx)
		q.Enqueue("key")
		synctest.Wait()
		s := q.states["key"]
		stale := s.retry
		fire := func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.endWait(s, stale)
		}
		q.Enqueue("key")
		synctest.Wait()
		fire()
		synctest.Wait()
		if looks != 2 {
			t.Errorf("%d looks: a timer of before ended the pause", looks)
		}
		stale = s.retry
		q.Forget("key")
		fire()
		synctest.Wait()
		if looks != 2 || len(q.states) != 0 {
			t.Errorf("%d looks, %d keys: a timer of before brought a key back", looks, len(q.states))
		}
		cancel()
		q.Wait()
	})
}
