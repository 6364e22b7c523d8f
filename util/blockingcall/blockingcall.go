// Package blockingcall runs calls that may block for hours and that no context
// ends, such as a stat on a dead server.
//
// A caller of [Group.Do] waits no longer than its context allows; the call itself
// may go on. A [Group] runs one call a key at a time, so that retries against a dead
// server cost one thread, not one each (kubernetes issue 31272, containerd issue
// 10828). Calls are not shared: each caller's own call runs in its turn.
//
// Like every package below util, it carries no promise of compatibility.
package blockingcall

import (
	"context"
	"fmt"

	"github.com/podvol/podvol/util/keylock"
)

// Group runs calls, one at a time for each key. Its zero value is ready; it
// must not be copied after first use. All methods are safe for concurrent use.
type Group[K comparable] struct {
	running keylock.Map[K]
}

// AbandonedError says that a wait ended before its call did. With neither
// Started nor Earlier, nothing was begun because the context had already ended.
type AbandonedError struct {
	// Started tells whether the call was begun, and so may still take effect.
	Started bool
	// Earlier tells that the call was not begun because an earlier one for the
	// same key was still running, which may still take effect.
	Earlier bool
	// Err is the cause of the context's end.
	Err error
}

func (e *AbandonedError) Error() string {
	switch {
	case e.Started:
		return fmt.Sprintf("gave up waiting for a call that is still running: %v", e.Err)
	case e.Earlier:
		return fmt.Sprintf("gave up waiting for an earlier call that is still running: %v", e.Err)
	}
	return fmt.Sprintf("nothing was begun: %v", e.Err)
}

// Unwrap returns the cause of the context's end.
func (e *AbandonedError) Unwrap() error { return e.Err }

// Do runs call in a goroutine of its own, after the previous call for key has
// returned, and waits for it. It returns call's own error, also where ctx ends
// at the same moment, or *[AbandonedError] when ctx ends first; then call may
// still be running, and the caller must not read what call writes. A context
// that has already ended starts nothing, and for one that never ends
// (context.Background) call runs in the caller's own goroutine.
func (g *Group[K]) Do(ctx context.Context, key K, call func() error) error {
	return g.DoNoticing(ctx, key, func() {}, call)
}

// DoNoticing is [Group.Do] for a call that must know whether others came between.
// If call cannot begin at once, since an earlier one for key is outstanding,
// waiting is called first, in the caller's goroutine; it has returned before call
// begins. If it is not called, no other call for key ran between the begin of
// DoNoticing and of call. Waiting must not block longer than ctx allows.
func (g *Group[K]) DoNoticing(ctx context.Context, key K, waiting func(), call func() error) error {
	if ctx.Err() != nil {
		return &AbandonedError{Err: context.Cause(ctx)}
	}
	unlock, free := g.running.TryLock(key)
	if !free {
		waiting()
		var err error
		if unlock, err = g.running.Lock(ctx, key); err != nil {
			return &AbandonedError{Earlier: true, Err: err}
		}
	}
	if ctx.Done() == nil { // it never ends, so no caller would leave
		defer unlock()
		return call()
	}
	done := make(chan error, 1)
	go func() {
		defer unlock()
		done <- call()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	default:
		return &AbandonedError{Started: true, Err: context.Cause(ctx)}
	}
}
