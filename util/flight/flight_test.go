package flight_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/util/flight"
)

func TestDoReturnsTheCallsError(t *testing.T) {
	var group flight.Group[string]
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
		var group flight.Group[string]
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
			var abandoned *flight.AbandonedError
			if !errors.As(err, &abandoned) || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("try %d: err = %v, want an AbandonedError", try, err)
			}
			if first := try == 0; abandoned.Started != first {
				t.Fatalf("try %d: Started = %v", try, abandoned.Started)
			}
		}
		if calls.Load() != 1 {
			t.Fatalf("%d calls were started, want 1", calls.Load())
		}
		if !group.Running("server:/export") {
			t.Fatal("the hung call is not reported as running")
		}
		if err := group.Do(t.Context(), "other:/export", func() error { return nil }); err != nil {
			t.Fatalf("another key is delayed by the hung one: %v", err)
		}
		close(release)
		synctest.Wait()
		if group.Running("server:/export") {
			t.Fatal("still running after its release")
		}
		if err := group.Do(t.Context(), "server:/export", func() error { return nil }); err != nil {
			t.Fatalf("the key does not recover: %v", err)
		}
	})
}

func TestEndedContextStartsNothing(t *testing.T) {
	var group flight.Group[int]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := group.Do(ctx, 1, func() error { t.Error("the call was started"); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v", err)
	}
}
