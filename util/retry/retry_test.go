package retry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/util/retry"
)

var errDisturbed = errors.New("disturbed")

// No number of disturbances is an error; the pauses bound how often they are met.
func TestUntilItIsNotDisturbed(t *testing.T) {
	for _, last := range []error{nil, errors.New("something else")} {
		synctest.Test(t, func(t *testing.T) {
			began, calls := time.Now(), 0
			err := retry.Do(t.Context(), errDisturbed, func() error {
				if calls++; calls < 10_000 {
					return fmt.Errorf("try %d: %w", calls, errDisturbed)
				}
				return last
			})
			if err != last || calls != 10_000 {
				t.Errorf("%d calls: %v, want %v", calls, err, last)
			}
			if took := time.Since(began); took < 8*time.Minute || took > 10*time.Minute {
				t.Errorf("10000 tries took %v of pauses", took)
			}
		})
	}
}

// Most disturbances are met without a pause.
func TestAtFirstWithoutAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, calls := time.Now(), 0
		err := retry.Do(t.Context(), errDisturbed, func() error {
			if calls++; calls <= 30 {
				return errDisturbed
			}
			return nil
		})
		if err != nil || time.Since(began) > 0 {
			t.Errorf("%d calls took %v: %v", calls, time.Since(began), err)
		}
	})
}

// The end of the context ends it, in a pause too; one that has ended lets it be
// tried once.
func TestUntilTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Millisecond)
		defer cancel()
		began := time.Now()
		if err := retry.Do(ctx, errDisturbed, func() error { return errDisturbed }); err != errDisturbed || time.Since(began) != time.Minute+time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		calls := 0
		if err := retry.Do(ctx, errDisturbed, func() error { calls++; return errDisturbed }); err != errDisturbed || calls != 1 {
			t.Errorf("%d calls after the end: %v", calls, err)
		}
		if err := retry.Do(ctx, errDisturbed, func() error { return nil }); err != nil {
			t.Error(err)
		}
	})
}

// A pause doubles up to its last, begins anew when it is reset, and ends with the context.
func TestPauseDoubles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pause := retry.Pause{First: time.Second, Last: 5 * time.Second}
		for _, want := range []time.Duration{1, 2, 4, 5, 5} {
			if due, next := pause.Due(), pause.Next(); due != want*time.Second || next != due {
				t.Errorf("due %v, next %v, want %ds", due, next, want)
			}
		}
		pause.Reset()
		began := time.Now()
		if !pause.Wait(t.Context()) || time.Since(began) != time.Second {
			t.Errorf("after a reset it waited for %v", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if pause.Wait(ctx) || time.Since(began) != 2*time.Second {
			t.Errorf("it did not end with its context, but after %v", time.Since(began))
		}
	})
}
