// Package clocks compares times by both clocks of a machine. The monotonic clock stands still
// while the machine sleeps. The wall clock may be set. A time of [time.Now] has a reading of
// both, and the methods of [time.Time] then look at the monotonic one alone.
//
// Like every package below util, it carries no promise of compatibility.
package clocks

import "time"

// Between is how much time has passed from one time to another, by the clock that says more.
// It is negative if both clocks say so. Where one of the times has no monotonic reading, the
// wall clock alone says it.
func Between(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// IsDue reports whether the time at has come, by one of the clocks.
func IsDue(at, now time.Time) bool { return Between(at, now) >= 0 }
