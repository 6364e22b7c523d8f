package blockingcall_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/util/blockingcall"
)

func TestDoReturnsTheCallsError(t *testing.T) {
	var group blockingcall.Group[string]
	want := errors.New("no such export")
	if err := group.Do(t.Context(), "a", func() error { return want }); err != want {
		t.Fatalf("err = %v, want %v", err, want)
	}
	if err := group.Do(t.Context(), "a", func() error { return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestHungCallCostsOneGoroutineHoweverOftenRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var group blockingcall.Group[string]
		release := make(chan struct{})
		var calls atomic.Int32
		hang := func() error {
			calls.Add(1)
			<-release
			return nil
		}
		for try := range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := group.Do(ctx, "server:/export", hang)
			cancel()
			var abandoned *blockingcall.AbandonedError
			if !errors.As(err, &abandoned) || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("try %d: err = %v, want an AbandonedError", try, err)
			}
			if first := try == 0; abandoned.Started != first || abandoned.Earlier == first {
				t.Fatalf("try %d: Started = %v, Earlier = %v", try, abandoned.Started, abandoned.Earlier)
			}
		}
		if calls.Load() != 1 {
			t.Fatalf("%d calls were started, want 1", calls.Load())
		}
		if err := group.Do(t.Context(), "other:/export", func() error { return nil }); err != nil {
			t.Fatalf("another key is delayed by the hung one: %v", err)
		}
		close(release)
		synctest.Wait()
		if err := group.Do(t.Context(), "server:/export", func() error { return nil }); err != nil {
			t.Fatalf("the key does not recover: %v", err)
		}
	})
}

func TestEndedContextStartsNothing(t *testing.T) {
	var group blockingcall.Group[int]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := group.Do(ctx, 1, func() error { t.Error("the call was started"); return nil })
	abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err)
	if !ok || !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v", err)
	}
	if abandoned.Started || abandoned.Earlier || strings.Contains(err.Error(), "running") {
		t.Fatalf("it speaks of a call, and there is none: %v", err)
	}
}

// endsWithTheCall is a context that has ended by the time the call's result is
// ready, so that whoever waits for either finds both.
type endsWithTheCall struct{ context.Context }

func (c endsWithTheCall) Done() <-chan struct{} {
	synctest.Wait()
	ended := make(chan struct{})
	close(ended)
	return ended
}

func TestResultThatIsReadyIsNotAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var group blockingcall.Group[int]
		want := errors.New("no such export")
		for try := range 100 { // a select takes either of two at random
			err := group.Do(endsWithTheCall{t.Context()}, 1, func() error { return want })
			if !errors.Is(err, want) {
				t.Fatalf("try %d: err = %v, want the result of the call", try, err)
			}
		}
	})
}

// goroutine is the caller's, as its stack begins: "goroutine 7".
func goroutine() string {
	stack := make([]byte, 64)
	name, _, _ := strings.Cut(string(stack[:runtime.Stack(stack, false)]), " [")
	return name
}

// A wait that nobody can end needs no goroutine of its own.
func TestEndlessContextRunsInTheCallersGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g blockingcall.Group[string]
		caller, callee := goroutine(), ""
		if err := g.Do(context.Background(), "key", func() error { callee = goroutine(); return nil }); err != nil {
			t.Error(err)
		}
		if callee != caller {
			t.Errorf("the call runs in %s, the caller in %s", callee, caller)
		}
		// It excludes others for its key all the same.
		release, entered := make(chan struct{}), make(chan struct{})
		go g.Do(context.Background(), "key", func() error { close(entered); <-release; return nil })
		<-entered
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := g.Do(ctx, "key", func() error { return nil })
		if abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err); !ok || !abandoned.Earlier {
			t.Errorf("err = %v", err)
		}
		close(release)
	})
}

func TestDoNoticingTellsWhetherItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g blockingcall.Group[string]
		var order []string
		note := func(word string) { order = append(order, word) }
		do := func(ctx context.Context, key string) error {
			return g.DoNoticing(ctx, key, func() { note("waits") }, func() error { note("runs"); return nil })
		}
		if err := do(t.Context(), "key"); err != nil {
			t.Error(err)
		}
		release := make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Do(ctx, "key", func() error { <-release; return nil }); err == nil {
			t.Error("the call was not abandoned")
		}
		if err := do(t.Context(), "other"); err != nil {
			t.Error(err)
		}
		waited := make(chan error)
		go func() { waited <- do(context.Background(), "key") }() // for one that nobody waits for
		synctest.Wait()
		note("released")
		close(release)
		if err := <-waited; err != nil {
			t.Error(err)
		}
		if err := do(t.Context(), "key"); err != nil {
			t.Error(err)
		}
		if want := []string{"runs", "runs", "waits", "released", "runs", "runs"}; !slices.Equal(order, want) {
			t.Errorf("%v, want %v", order, want)
		}
	})
}
