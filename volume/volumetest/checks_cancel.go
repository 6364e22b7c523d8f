package volumetest

import (
	"context"
	"errors"
	"sync"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest/internal/harness"
)

const (
	// patience is the deadline of an operation that hangs.
	patience = 10 * time.Second
	// grace is what cleaning up may take after it, where everything hangs.
	grace = 30 * time.Second
)

// cancelChecks are about contexts that end. Time is virtual.
func cancelChecks() []check {
	operations := []func() operation{setUpOperation, refreshOperation, tearDownOperation}
	return []check{
		{
			name:   "cancel/before",
			proves: "A context that has ended before the call is an error that wraps its cause, unless nothing was left to do that could block; the volume can be set up and torn down afterwards.",
			each:   forAll(operations, checkCancelledBefore),
		},
		{
			name:   "cancel/during",
			proves: "When the context ends during SetUp or TearDown, at whichever call, the volume can be set up and torn down afterwards.",
			each:   forAll(operations, checkCancelledDuring),
		},
		{
			name:   "cancel/hang",
			proves: "When a call hangs for ever, at whichever call, SetUp and TearDown return when their context ends, and no goroutine is left once the call returns.",
			each:   forAll(operations, func(k *kit, c Case, op operation) { checkHang(k, c, op, false) }),
		},
		{
			name:   "cancel/all-hangs",
			proves: "When every call hangs from some call on, SetUp and TearDown return half a minute after their context ended at the latest, and recover once calls return again.",
			each:   forAll(operations, func(k *kit, c Case, op operation) { checkHang(k, c, op, true) }),
		},
	}
}

func forAll(operations []func() operation, f func(*kit, Case, operation)) func(*kit, Case) {
	return func(k *kit, c Case) {
		for _, operation := range operations {
			f(k, c, operation())
		}
	}
}

func checkCancelledBefore(k *kit, c Case, op operation) {
	k.bubble(func(k *kit) {
		defer k.Explain("%s with a context that had ended", op.name)
		n := k.node(c)
		v := n.volume("a")
		op.prepare(v)
		ctx, cancel := context.WithCancel(k.Context())
		cancel()
		err := op.run(ctx, v)
		if err != nil && !errors.Is(err, context.Canceled) {
			k.Errorf("the error does not wrap context.Canceled: %v", err)
		}
		v.recover(k)
	})
}

// recover sets the volume up and tears it down.
func (v *podVolume) recover(k *kit) {
	k.Helper()
	v.mustSetUp()
	v.assertShown()
	v.mustTearDown()
	v.assertGone()
	v.node.AssertTornDown(k)
}

func checkCancelledDuring(k *kit, c Case, op operation) {
	for _, p := range k.points(c, op) {
		k.bubble(func(k *kit) {
			defer k.Explain("%s, whose context ended in %s", op.name, p)
			v := k.node(c).volume("a")
			op.prepare(v)
			ctx, cancel := context.WithCancel(k.Context())
			defer cancel()
			_, remove := v.node.disturb(p, disturbance{hook: cancel})
			err := op.run(ctx, v)
			remove()
			if err != nil && !errors.Is(err, context.Canceled) {
				k.Errorf("the error does not wrap context.Canceled: %v", err)
			}
			v.recover(k)
		})
	}
}

func checkHang(k *kit, c Case, op operation, onward bool) {
	for _, p := range k.points(c, op) {
		k.bubble(func(k *kit) {
			defer k.Explain("%s, where %s hung", op.name, p)
			v := k.node(c).volume("a")
			op.prepare(v)
			v.node.hang(k, p, onward, hanging{
				name: op.name,
				run:  func(ctx context.Context) error { return op.run(ctx, v) },
				failed: func(err error) {
					if !volume.IsUncertain(err) && len(v.node.podMounts(k)) > 0 && op.name == "SetUp" {
						k.Errorf("the error is marked by NothingDone, but something is mounted: %v", err)
					}
				},
			})
			v.recover(k)
		})
	}
}

// hanging is what runs while a call hangs.
type hanging struct {
	name string
	run  func(context.Context) error
	// allowed is how long after its context's end it may return; 0: a second.
	allowed time.Duration
	// failed, if not nil, looks at its error while the call still hangs.
	failed func(error)
}

// hang fails unless what runs returns in time although the point's call hangs,
// and leaves no goroutine once the call has returned.
func (n *Node) hang(k *kit, p point, onward bool, h hanging) {
	k.Helper()
	before := harness.Goroutines()
	late := n.lateness(k, p, onward, h)
	switch {
	case !onward && late > max(h.allowed, time.Second):
		k.Errorf("%s returned %v after its context had ended", h.name, late)
	case late > grace:
		k.Errorf("%s returned %v after its context had ended, although all hung", h.name, late)
	}
	// What was left running may take its time to notice.
	time.Sleep(time.Hour)
	synctest.Wait()
	for id, stack := range harness.Goroutines() {
		if before[id] == "" {
			k.Errorf("a goroutine is left:\n%s", stack)
		}
	}
}

// lateness runs something until it returns although the point's call hangs,
// then releases the call. It returns how long after its context's end that was.
func (n *Node) lateness(k *kit, p point, onward bool, h hanging) time.Duration {
	k.Helper()
	release := make(chan struct{})
	_, remove := n.disturb(p, disturbance{release: release, onward: onward})
	free := sync.OnceFunc(func() {
		remove()
		close(release)
	})
	defer free()
	ctx, cancel := context.WithTimeout(k.Context(), patience)
	defer cancel()
	deadline := time.Now().Add(patience)
	done := k.Async(func() error { return h.run(ctx) })
	select {
	case err := <-done:
		if errors.Is(err, harness.ErrPanicked) {
			return 0
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			k.Errorf("the error does not wrap context.DeadlineExceeded: %v", err)
		}
		if err != nil && h.failed != nil {
			h.failed(err)
		}
	case <-time.After(patience + time.Hour):
		free()
		<-done
		return time.Hour
	}
	return time.Since(deadline)
}
