package progress

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/util/deadline"
)

// A plugin's own limit holds although the context would have ended sooner, once that was
// put off.
func TestAPluginsOwnLimitHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPatience(t.Context(), 2*time.Minute)
		defer p.End()
		start := time.Now()
		own, cancel := context.WithTimeout(p, 3*time.Minute)
		defer cancel()
		time.Sleep(time.Minute)
		p.PutOff()
		time.Sleep(90 * time.Second)
		p.PutOff()
		<-own.Done()
		if took := time.Since(start); took != 3*time.Minute || own.Err() != context.DeadlineExceeded || p.Err() != nil {
			t.Errorf("it ended after %v with %v; the other one with %v", took, own.Err(), p.Err())
		}
	})
}

// The end of the time is an end by a deadline, of derived contexts too; the end of the parent
// is told as it is.
func TestHowPatienceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("the pod was deleted")
		tests := map[string]struct {
			end        func(p *Patience, cancel context.CancelCauseFunc)
			err, cause error
			after      time.Duration
		}{
			"its time is over": {func(*Patience, context.CancelCauseFunc) {}, context.DeadlineExceeded, context.DeadlineExceeded, time.Minute},
			"it is put off": {func(p *Patience, _ context.CancelCauseFunc) {
				time.Sleep(30 * time.Second)
				p.PutOff()
			}, context.DeadlineExceeded, context.DeadlineExceeded, 90 * time.Second},
			"its parent ends": {func(_ *Patience, cancel context.CancelCauseFunc) { cancel(why) }, context.Canceled, why, 0},
			"it is ended":     {func(p *Patience, _ context.CancelCauseFunc) { p.End() }, context.Canceled, context.Canceled, 0},
		}
		for name, tc := range tests {
			parent, cancelParent := context.WithCancelCause(t.Context())
			p := NewPatience(parent, time.Minute)
			derived, cancel := context.WithCancel(p)
			start := time.Now()
			tc.end(p, cancelParent)
			if end, ok := deadline.Of(derived); tc.after > 0 && (!ok || end.Sub(start) != tc.after) {
				t.Errorf("%s: it says that it ends after %v", name, end.Sub(start))
			}
			<-derived.Done()
			if after := time.Since(start); after != tc.after || p.Err() != tc.err || derived.Err() != tc.err || context.Cause(derived) != tc.cause || context.Cause(p) != tc.cause {
				t.Errorf("%s: after %v: %v, derived %v, causes %v and %v", name, after, p.Err(), derived.Err(), context.Cause(p), context.Cause(derived))
			}
			p.End()
			cancel()
			cancelParent(nil)
		}
	})
}

// It has ended when the call has returned that ends its parent: an operation that is given up
// begins nothing more.
func TestPatienceEndsWithItsParentAtOnce(t *testing.T) {
	for range 1000 {
		parent, cancel := context.WithCancel(t.Context())
		p := NewPatience(parent, time.Minute)
		cancel()
		if p.Err() != context.Canceled {
			t.Fatalf("after its parent has ended: %v", p.Err())
		}
		p.End()
	}
}
