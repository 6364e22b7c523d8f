// Package retry repeats what the changes of others have disturbed: a rename or a
// mount while the kernel resolved a path, a directory that was made or removed
// between two steps. Such a disturbance passes, but it cannot be said after how many
// times: a busy machine uses up every number. So the only limit is the caller's
// context. [Pause] is for loops of other kinds.
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
	pause := Pause{First: firstPause, Last: lastPause}
	for n := 1; ; n++ {
		err := try()
		if !errors.Is(err, disturbed) || ctx.Err() != nil {
			return err
		}
		if n < eager {
			continue
		}
		if !pause.Wait(ctx) {
			return err
		}
	}
}

// Patiently is [Do] for callers without a context, for 3 s: about a hundred times.
func Patiently(disturbed error, try func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return Do(ctx, disturbed, try)
}

// Pause is the pause between two attempts: First, and twice as long each time, up to Last.
// It is for one goroutine.
type Pause struct {
	First, Last time.Duration
	next        time.Duration // 0: First
}

// Due returns the pause that is due.
func (p *Pause) Due() time.Duration { return max(p.next, p.First) }

// Next returns the pause that is due, and makes the next one so.
func (p *Pause) Next() time.Duration {
	due := p.Due()
	p.next = min(2*due, p.Last)
	return due
}

// Reset makes the first pause due again.
func (p *Pause) Reset() { p.next = 0 }

// Wait waits for the pause that is due. It returns false as soon as ctx ends.
func (p *Pause) Wait(ctx context.Context) bool {
	timer := time.NewTimer(p.Next())
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
