// Package fault injects faults into the calls of a fake, and keeps a log of all
// calls.
//
// The fake describes each call as a value of its own type C and hands over the
// effect; an [Injector] decides whether the call is delayed, hangs, fails before
// its effect, or fails after it. Faults are explicit values, not magic names.
//
// Like every package below util, it carries no promise of compatibility.
package fault

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Fault says which calls to hit and how. Its zero value hits every call and
// does nothing to it.
type Fault[C any] struct {
	// Match selects calls; nil selects all. It must not call the fake.
	Match func(C) bool
	// Nth hits only the n-th selected call, counted from 1; 0 hits them all.
	Nth int
	// After lets the call take effect before it is delayed, hangs or fails.
	After bool
	// Hook, if not nil, is called before the call is delayed, hangs or fails.
	// It may call the fake, unless that holds a lock meanwhile.
	Hook func()
	// Err is what the call returns; nil leaves the call's own result.
	Err error
	// Delay is added to the call.
	Delay time.Duration
	// Release, if not nil, makes the call hang until it is closed or receives
	// a value, or until the call's context ends.
	Release <-chan struct{}
}

// Injector holds faults and the log of calls. Its zero value is ready; it must
// not be copied after first use. All methods are safe for concurrent use.
type Injector[C any] struct {
	mu     sync.Mutex
	faults []*armed[C]
	calls  []C
}

type armed[C any] struct {
	Fault[C]
	seen int
}

// Inject adds faults and returns the function that takes just these away
// again. A fault that has already hit a hanging call does not let go of it
// when it is removed; close Release for that. Where several faults hit one
// call, all of their waits apply and the first error wins.
func (i *Injector[C]) Inject(faults ...Fault[C]) (remove func()) {
	added := make([]*armed[C], len(faults))
	for n, f := range faults {
		added[n] = &armed[C]{Fault: f}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.faults = append(i.faults, added...)
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.faults = slices.DeleteFunc(i.faults, func(a *armed[C]) bool { return slices.Contains(added, a) })
	}
}

// Do logs the call and runs effect under the faults that hit it. The error is
// the fault's, the effect's, or the cause of ctx's end where the call hung
// until then; a call whose context ends before its effect has none.
func (i *Injector[C]) Do(ctx context.Context, call C, effect func() error) error {
	hits := i.record(call)
	if err := suffer(ctx, hits, false); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := effect()
	if faultErr := suffer(ctx, hits, true); faultErr != nil {
		return faultErr
	}
	return err
}

// Calls returns a copy of the log, oldest first, with the calls that a fault
// let fail.
func (i *Injector[C]) Calls() []C {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.calls)
}

// ResetCalls empties the log; it leaves the faults and their counts.
func (i *Injector[C]) ResetCalls() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.calls = nil
}

func (i *Injector[C]) record(call C) (hits []Fault[C]) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.calls = append(i.calls, call)
	for _, a := range i.faults {
		if a.Match != nil && !a.Match(call) {
			continue
		}
		a.seen++
		if a.Nth == 0 || a.Nth == a.seen {
			hits = append(hits, a.Fault)
		}
	}
	return hits
}

func suffer[C any](ctx context.Context, hits []Fault[C], after bool) error {
	var first error
	for _, f := range hits {
		if f.After != after {
			continue
		}
		if f.Hook != nil {
			f.Hook()
		}
		if err := wait(ctx, f.Delay, f.Release); err != nil {
			return err
		}
		if first == nil {
			first = f.Err
		}
	}
	return first
}

func wait(ctx context.Context, delay time.Duration, release <-chan struct{}) error {
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if release == nil {
		return nil
	}
	select {
	case <-release:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
