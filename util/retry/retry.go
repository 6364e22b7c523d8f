// Package retry repeats what the changes of others have disturbed: a rename or a
// mount while the kernel resolved a path, a directory that somebody made or removed
// between two steps. Such a disturbance passes, but nobody can say after how many
// times: a busy machine uses up every number. So the only limit is the caller's
// context.
//
// Like every package below util, it carries no promise of compatibility.
package retry

import (
	"context"
	"errors"
	"time"
)

const (
	// eager is how often something is tried without a pause: most disturbances
	// are over at once.
	eager      = 32
	firstPause = 100 * time.Microsecond
	lastPause  = 50 * time.Millisecond
	// patience is for callers without a context: what lasts longer is no disturbance.
	patience = 3 * time.Second
)

// Do calls try at least once, and again, after pauses that grow to 50 ms, while its
// error matches disturbed and ctx has not ended. It returns try's last error, which
// matches disturbed only where ctx has ended.
func Do(ctx context.Context, disturbed error, try func() error) error {
	pause := firstPause
	for n := 1; ; n++ {
		err := try()
		if !errors.Is(err, disturbed) || ctx.Err() != nil {
			return err
		}
		if n < eager {
			continue
		}
		if !paused(ctx, pause) {
			return err
		}
		pause = min(2*pause, lastPause)
	}
}

// Patiently is [Do] for callers without a context, for 3 s: about a hundred times.
func Patiently(disturbed error, try func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return Do(ctx, disturbed, try)
}

// paused returns false as soon as ctx ends.
func paused(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
