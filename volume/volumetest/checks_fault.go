package volumetest

import (
	"errors"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest/internal/tree"
)

// faultChecks let every call of the mounter and the roles fail in turn, before
// its effect and after it. Time is virtual, so that a plugin may try for long.
func faultChecks() []check {
	return []check{
		{
			name:   "faults/setup-retried",
			proves: "Whichever call fails during SetUp, another SetUp succeeds, and TearDown leaves nothing.",
			each: sweep(setUpOperation, func(v *podVolume, err error) {
				if err == nil {
					v.assertShown()
				}
				v.mustSetUp()
				v.assertShown()
				v.mustTearDown()
			}),
		},
		{
			name:   "faults/setup-torn-down",
			proves: "Whichever call fails during SetUp, TearDown puts right what it left.",
			each:   sweep(setUpOperation, func(v *podVolume, _ error) { v.mustTearDown() }),
		},
		{
			name:   "faults/nothing-done",
			proves: "Where SetUp fails with an error that is marked by NothingDone, it left neither mount, directory nor file.",
			each: sweep(setUpOperation, func(v *podVolume, err error) {
				if err == nil || volume.IsUncertain(err) {
					v.mustTearDown()
					return
				}
				v.releaseMounted()
			}),
		},
		{
			name:   "faults/refresh",
			proves: "Whichever call fails during another SetUp, a volume that is in use stays as it is.",
			each: sweep(refreshOperation, func(v *podVolume, err error) {
				v.assertShown()
				v.mustSetUp()
				v.assertShown()
				v.mustTearDown()
			}),
		},
	}
}

// tearDownFaultChecks are those of a TearDown in which a call fails, and of errors.
func tearDownFaultChecks() []check {
	return []check{
		{
			name:   "faults/teardown-retried",
			proves: "Whichever call fails during TearDown, either nothing is left, or there is an error and another TearDown succeeds.",
			each: sweep(tearDownOperation, func(v *podVolume, err error) {
				if err != nil {
					v.mustTearDown()
				}
			}),
		},
		{
			name:   "faults/teardown-set-up",
			proves: "Whichever call fails during TearDown, the volume can be set up again.",
			each: sweep(tearDownOperation, func(v *podVolume, _ error) {
				v.mustSetUp()
				v.assertShown()
				v.mustTearDown()
			}),
		},
		{
			name:   "faults/cause",
			proves: "An error keeps its cause, so that errors.Is finds it.",
			each:   checkCause,
		},
	}
}

// sweep runs an operation as often as it has points, one failing each time,
// and then recovers; nothing may be left after that.
func sweep(operation func() operation, recover func(*podVolume, error)) func(*kit, Case) {
	return func(k *kit, c Case) {
		op := operation()
		for _, p := range k.points(c, op) {
			k.bubble(func(k *kit) {
				defer k.Explain("%s, where %s failed", op.name, p)
				n := k.node(c)
				v := n.volume("a")
				op.prepare(v)
				source := tree.Snapshot(k, n.Dir)
				_, remove := n.disturb(p, disturbance{err: errInjected})
				n.mounter.ResetCalls()
				err := op.run(k.Context(), v)
				remove()
				recover(v, err)
				v.assertGone()
				n.AssertTornDown(k)
				tree.AssertKept(k, "the source", source, tree.Snapshot(k, n.Dir))
			})
		}
	}
}

func checkCause(k *kit, c Case) {
	for _, op := range []operation{setUpOperation(), tearDownOperation()} {
		for _, p := range k.points(c, op) {
			k.bubble(func(k *kit) {
				defer k.Explain("%s, where %s failed", op.name, p)
				n := k.node(c)
				v := n.volume("a")
				op.prepare(v)
				n.disturb(p, disturbance{err: errInjected})
				if err := op.run(k.Context(), v); err != nil && !errors.Is(err, errInjected) {
					k.Errorf("the error does not wrap its cause: %v", err)
				}
			})
		}
	}
}
