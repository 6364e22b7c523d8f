package volumetest

import (
	"context"

	"github.com/podvol/podvol/volume/volumetest/internal/tree"
)

// crashChecks let the process die at every call of the mounter and the roles,
// before its effect and after it, and start another on the same root and
// mounts.
func crashChecks() []check {
	setUp := func(v *podVolume) {
		v.MustSetUp()
		v.assertShown()
		v.MustTearDown()
	}
	return []check{
		{
			name:   "crash/setup-set-up",
			proves: "At whichever call the process dies during SetUp, SetUp of a new process succeeds.",
			each:   crash(setUpOperation, setUp),
		},
		{
			name:   "crash/setup-torn-down",
			proves: "At whichever call the process dies during SetUp, TearDown of a new process leaves nothing.",
			each:   crash(setUpOperation, (*podVolume).MustTearDown),
		},
		{
			name:   "crash/teardown-set-up",
			proves: "At whichever call the process dies during TearDown, SetUp of a new process succeeds.",
			each:   crash(tearDownOperation, setUp),
		},
		{
			name:   "crash/teardown-torn-down",
			proves: "At whichever call the process dies during TearDown, TearDown of a new process leaves nothing.",
			each:   crash(tearDownOperation, (*podVolume).MustTearDown),
		},
	}
}

func crash(operation func() operation, recover func(*podVolume)) func(*kit, Case) {
	return func(k *kit, c Case) {
		op := operation()
		for _, p := range k.points(c, op) {
			k.bubble(func(k *kit) {
				defer k.Explain("%s, where the process died in %s", op.name, p)
				n := k.node(c)
				v := n.volume("a")
				op.prepare(v)
				source := tree.Snapshot(k, n.Dir)
				bury := n.sim.Die(p, func(ctx context.Context) error { return op.run(ctx, v) })
				// Also where a check below ends the test.
				defer bury()
				again := n.restart()
				recover(v.same(again))
				v.assertGone()
				again.AssertTornDown(k)
				tree.AssertKept(k, "the source", source, tree.Snapshot(k, n.Dir))
			})
		}
	}
}
