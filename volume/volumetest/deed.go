package volumetest

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

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
	// settle does the deed again, on the node or on what it is after a restart,
	// and fails unless all is then as if nothing had ever gone wrong.
	settle func(*Node)
}

func (d deed) points(k *kit) []point {
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
			_, remove := t.node.disturb(p, disturbance{err: errInjected})
			err := t.run(k.Context())
			remove()
			if err != nil && !errors.Is(err, errInjected) {
				k.Errorf("the error does not wrap its cause: %v", err)
			}
			t.settle(t.node)
		})
	}
}

// sweepCrashes lets the process die at each call of the deed in turn.
func (d deed) sweepCrashes(k *kit) {
	for _, p := range d.points(k) {
		k.bubble(func(k *kit) {
			defer k.Explain("%s, where the process died in %s", d.name, p)
			t := d.begin(k)
			bury := t.node.die(p, t.run)
			// Also where a check below ends the test.
			defer bury()
			t.settle(t.node.restart())
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
			_, remove := t.node.disturb(p, disturbance{hook: cancel})
			err := t.run(ctx)
			remove()
			t.assertCancelled(k, err)
		})
		for _, onward := range []bool{false, true} {
			k.bubble(func(k *kit) {
				defer k.Explain("%s, where %s hung, and the later ones: %v", d.name, p, onward)
				t := d.begin(k)
				t.node.hang(k, p, onward, hanging{name: d.name, run: t.run, allowed: grace})
				t.settle(t.node)
			})
		}
	}
}

func (t *trial) assertCancelled(k *kit, err error) {
	k.Helper()
	if err != nil && !errors.Is(err, context.Canceled) {
		k.Errorf("the error does not wrap context.Canceled: %v", err)
	}
	t.settle(t.node)
}

// assertNothingHeld is AssertTornDown after a deed. It bears with the directory
// in which the plugin mounts for itself, below its own, but with nothing in it.
func (n *Node) assertNothingHeld(t testing.TB) {
	t.Helper()
	own := n.GetPluginDir(n.plugin.GetPluginName())
	isOwn := func(dir string) bool {
		return dir == own || strings.HasPrefix(own, dir+"/") || filepath.Dir(dir) == own
	}
	n.Host.AssertTornDown(t, n.devices.isParent, isOwn)
}
