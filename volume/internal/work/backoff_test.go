package work

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// laterError says when the next attempt makes sense.
type laterError struct{ at time.Time }

func (e laterError) Error() string      { return "not before " + e.at.String() }
func (e laterError) RetryAt() time.Time { return e.at }

// The documented pauses: they double from the first one up to 2 min 2 s, and begin anew
// after a reset.
func TestPausesDoubleUpToTheLast(t *testing.T) {
	var b Backoff
	want := []time.Duration{
		500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second,
		32 * time.Second, 64 * time.Second, 122 * time.Second, 122 * time.Second,
	}
	for round := range 2 {
		var pauses []time.Duration
		for range want {
			pauses = append(pauses, b.Fail(OperationPause, errors.New("broken")))
		}
		if !slices.Equal(pauses, want) || b.Failures() != len(want) {
			t.Errorf("round %d: %v after %d failures, want %v", round, pauses, b.Failures(), want)
		}
		b.Reset()
		if b.Failures() != 0 {
			t.Errorf("%d failures after a reset", b.Failures())
		}
	}
}

// A time that an error names is kept within the bounds, and lengthens no later pause.
func TestAPauseUntilTheTimeOfAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Backoff
		b.Fail(OperationPause, errors.New("broken"))
		for _, tc := range []struct{ in, want time.Duration }{
			{30 * time.Second, 30 * time.Second},
			{-time.Hour, OperationPause},
			{time.Millisecond, OperationPause},
			{time.Hour, LastPause},
		} {
			if pause := b.Fail(OperationPause, laterError{time.Now().Add(tc.in)}); pause != tc.want {
				t.Errorf("an error that names a time in %v: a pause of %v, want %v", tc.in, pause, tc.want)
			}
		}
		if b.Failures() != 5 {
			t.Errorf("%d failures, want 5", b.Failures())
		}
		if pause := b.Fail(OperationPause, errors.New("broken")); pause != 2*OperationPause {
			t.Errorf("a pause of %v after those, want %v", pause, 2*OperationPause)
		}
	})
}
