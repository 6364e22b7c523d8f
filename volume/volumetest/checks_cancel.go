package volumetest

import (
	"context"
	"errors"
	"io"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest/internal/sim"
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
	v.MustSetUp()
	v.assertShown()
	v.MustTearDown()
	v.assertGone()
	v.node.AssertTornDown(k)
}

// warm sets the volume up and tears it down, if the plugin can be closed: what it keeps
// until then, such as a connection, is none of an operation's goroutines.
func (v *podVolume) warm() {
	if _, keeps := v.node.sim.Plugin.(io.Closer); keeps {
		v.MustSetUp()
		v.MustTearDown()
	}
}

func checkCancelledDuring(k *kit, c Case, op operation) {
	for _, p := range k.points(c, op) {
		k.bubble(func(k *kit) {
			defer k.Explain("%s, whose context ended in %s", op.name, p)
			v := k.node(c).volume("a")
			op.prepare(v)
			ctx, cancel := context.WithCancel(k.Context())
			defer cancel()
			_, remove := v.node.sim.Disturb(p, sim.Disturbance{Hook: cancel})
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
			v.warm()
			op.prepare(v)
			v.node.sim.Hang(p, onward, sim.Hanging{
				Name: op.name,
				Run:  func(ctx context.Context) error { return op.run(ctx, v) },
				Failed: func(err error) {
					if !volume.IsUncertain(err) && len(v.node.sim.PodMounts(k)) > 0 && op.name == "SetUp" {
						k.Errorf("the error is marked by NothingDone, but something is mounted: %v", err)
					}
				},
			})
			v.recover(k)
		})
	}
}
