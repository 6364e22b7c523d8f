// Package work is what the reconcilers of nodes and of claims have in common: a
// queue of keys, the [Result] that says when to reconcile one again, the pause
// after a failure, and the count of active keys.
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

// Pause is how long to wait before the next attempt, after a number of failures in a row.
// The argument first is the pause after one failure. It doubles with each further one, up
// to [LastPause]. If err, the last failure, says when the next attempt makes sense
// ([volume.RetryAt]), the pause ends then, but is never shorter than first nor longer than
// LastPause.
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
