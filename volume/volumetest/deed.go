package volumetest

import (
	"context"
	"errors"

	"github.com/podvol/podvol/volume/volumetest/internal/sim"
)

// operation is one of SetUp and TearDown as a check disturbs it.
type operation struct {
	name string
	// prepare brings the volume into the state that the operation begins with.
	prepare func(*podVolume)
	run     func(context.Context, *podVolume) error
}

func setUpOperation() operation {
	return operation{
		name:    "SetUp",
		prepare: func(*podVolume) {},
		run:     func(ctx context.Context, v *podVolume) error { return v.SetUpWithDevice(ctx) },
	}
}

func tearDownOperation() operation {
	return operation{
		name:    "TearDown",
		prepare: (*podVolume).MustSetUp,
		run:     func(ctx context.Context, v *podVolume) error { return v.TearDownWithDevice(ctx) },
	}
}

// refreshOperation is SetUp of what is set up already.
func refreshOperation() operation {
	op := setUpOperation()
	op.name, op.prepare = "another SetUp", (*podVolume).MustSetUp
	return op
}

// points counts the calls of an undisturbed run and returns all points.
func (k *kit) points(c Case, op operation) []sim.Point {
	k.Helper()
	return k.pointsOf(op.name, func(k *kit) (*Node, func(context.Context) error) {
		v := k.node(c).volume("a")
		op.prepare(v)
		return v.node, func(ctx context.Context) error { return op.run(ctx, v) }
	})
}

// pointsOf is points of an operation that begin makes ready to run.
func (k *kit) pointsOf(name string, begin func(*kit) (*Node, func(context.Context) error)) []sim.Point {
	k.Helper()
	var mounter, roles int
	k.bubble(func(k *kit) {
		n, run := begin(k)
		var err error
		if mounter, roles, err = n.sim.Count(func() error { return run(k.Context()) }); err != nil {
			k.Fatalf("%s without any fault: %v", name, err)
		}
	})
	if mounter+roles == 0 {
		k.Logf("%s makes no calls of the mounter and the roles: there is nothing to disturb", name)
	} else {
		k.Logf("%s makes %d calls of the mounter and %d of the roles, each disturbed before and after its effect", name, mounter, roles)
	}
	return sim.Points(mounter, roles)
}

// deed is what a controller has done to storage: recycled, provisioned,
// deleted. It may fail or be cut short anywhere, and is then done again.
type deed struct {
	name string
	// begin makes all ready on a new node.
	begin func(*kit) *trial
}

// trial is one deed on one node.
type trial struct {
	node *Node
	run  func(context.Context) error
	// converge does the deed again, on the node or on what it is after a restart,
	// and fails unless all is then as if nothing had ever gone wrong.
	converge func(*Node)
}

func (d deed) points(k *kit) []sim.Point {
	k.Helper()
	return k.pointsOf(d.name, func(k *kit) (*Node, func(context.Context) error) {
		t := d.begin(k)
		return t.node, t.run
	})
}

// sweepFaults lets each call of the deed fail in turn.
func (d deed) sweepFaults(k *kit) {
	for _, p := range d.points(k) {
		k.bubble(func(k *kit) {
			defer k.Explain("%s, where %s failed", d.name, p)
			t := d.begin(k)
			_, remove := t.node.sim.Disturb(p, sim.Disturbance{Err: sim.ErrInjected})
			err := t.run(k.Context())
			remove()
			if err != nil && !errors.Is(err, sim.ErrInjected) {
				k.Errorf("the error does not wrap its cause: %v", err)
			}
			t.converge(t.node)
		})
	}
}

// sweepCrashes lets the process die at each call of the deed in turn.
func (d deed) sweepCrashes(k *kit) {
	for _, p := range d.points(k) {
		k.bubble(func(k *kit) {
			defer k.Explain("%s, where the process died in %s", d.name, p)
			t := d.begin(k)
			bury := t.node.sim.Die(p, t.run)
			// Also where a check below ends the test.
			defer bury()
			t.converge(t.node.restart())
		})
	}
}

// sweepEnds lets the context end: before the deed, at each of its calls, and
// while each of them hangs.
func (d deed) sweepEnds(k *kit) {
	k.bubble(func(k *kit) {
		defer k.Explain("%s with a context that had ended", d.name)
		t := d.begin(k)
		ctx, cancel := context.WithCancel(k.Context())
		cancel()
		t.assertCancelled(k, t.run(ctx))
	})
	for _, p := range d.points(k) {
		k.bubble(func(k *kit) {
			defer k.Explain("%s, whose context ended in %s", d.name, p)
			t := d.begin(k)
			ctx, cancel := context.WithCancel(k.Context())
			defer cancel()
			_, remove := t.node.sim.Disturb(p, sim.Disturbance{Hook: cancel})
			err := t.run(ctx)
			remove()
			t.assertCancelled(k, err)
		})
		for _, onward := range []bool{false, true} {
			k.bubble(func(k *kit) {
				defer k.Explain("%s, where %s hung, and the later ones: %v", d.name, p, onward)
				t := d.begin(k)
				t.node.sim.Hang(p, onward, sim.Hanging{Name: d.name, Run: t.run, Allowed: sim.Grace})
				t.converge(t.node)
			})
		}
	}
}

func (t *trial) assertCancelled(k *kit, err error) {
	k.Helper()
	if err != nil && !errors.Is(err, context.Canceled) {
		k.Errorf("the error does not wrap context.Canceled: %v", err)
	}
	t.converge(t.node)
}
