// Package work is what the reconcilers of nodes and of claims have in common: a
// queue of keys, the [Result] that says when to reconcile one again, the [Backoff]
// after a failure, and the count of active keys.
package work

import (
	"time"

	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
)

const (
	// OperationPause is the pause after the first failure of an operation, which mounts or
	// makes storage: the kubelet's.
	OperationPause = 500 * time.Millisecond
	// LastPause is the longest pause after a failure: the kubelet's.
	LastPause = 2*time.Minute + 2*time.Second
)

// Backoff counts the failures in a row of one key or operation, and decides after which
// pause that is tried again. Its zero value has seen none. It is for one goroutine at a time.
type Backoff struct {
	failures int
	pause    retry.Pause
}

// Fail counts a failure, and returns the pause before the next attempt: first after the
// first failure, then twice as long each time, up to [LastPause]. The argument first is the
// same in every call.
//
// If err says when the next attempt makes sense ([volume.RetryAt]), the pause ends then, but
// is never shorter than first nor longer than LastPause. Such a pause does not lengthen the
// later ones, since nothing was tried.
func (b *Backoff) Fail(first time.Duration, err error) time.Duration {
	b.failures++
	if at, says := volume.RetryAt(err); says {
		return min(max(time.Until(at), first), LastPause)
	}
	b.pause.First, b.pause.Last = first, LastPause
	return b.pause.Next()
}

// Failures returns how many failures were counted since the last Reset.
func (b *Backoff) Failures() int { return b.failures }

// Reset forgets the failures: an attempt succeeded, or there is a new reason for one.
func (b *Backoff) Reset() { *b = Backoff{} }
