// Package mountwatch says when to compare the mount table with what should be in it: after
// changes, but not after each.
package mountwatch

import (
	"context"
	"time"
)

const (
	// lookAfter is how long changes of the mount table are gathered before it is
	// read: most are the manager's own.
	lookAfter = time.Second
	// lookShare is the least pause between two looks, in times what the last one
	// took, so that a long table that changes all the time costs little.
	lookShare = 50
)

// Watch calls look whenever the mount table has changed, until ctx ends; changes are those of
// a mount.Table's Subscribe. Where that is nil it returns at once. Without a change nothing runs.
func Watch(ctx context.Context, changes <-chan struct{}, look func()) {
	if changes == nil {
		return
	}
	pause := lookAfter
	for range changes {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		select {
		case <-changes: // the look sees these too
		default:
		}
		start := time.Now()
		look()
		pause = max(lookAfter, lookShare*time.Since(start))
	}
}
