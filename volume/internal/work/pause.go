// Package work is what controllers have in common: a queue of the objects to look at, the
// pause after a failure, and the count of what is active. The node's volume manager takes
// the pause from here, too.
package work

import (
	"time"

	"github.com/podvol/podvol/volume"
)

const (
	// OperationPause is the pause after the first failure of an operation, which mounts or
	// makes storage: the kubelet's.
	OperationPause = 500 * time.Millisecond
	// LastPause is the longest pause after a failure: the kubelet's.
	LastPause = 2*time.Minute + 2*time.Second
)

// Pause is how long to wait before the next attempt, after a number of failures in a row,
// the last of which was err. It is first after one failure and doubles with each, up to
// [LastPause]. Where the error says when the next attempt makes sense ([volume.RetryAt]),
// it is that time.
func Pause(first time.Duration, failures int, err error) time.Duration {
	if at, says := volume.RetryAt(err); says {
		return min(max(time.Until(at), first), LastPause)
	}
	pause := first
	for range failures - 1 {
		if pause *= 2; pause >= LastPause {
			return LastPause
		}
	}
	return pause
}
