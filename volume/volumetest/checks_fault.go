package volumetest

import (
	"context"
	"errors"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest/internal/sim"
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
				v.MustSetUp()
				v.assertShown()
				v.MustTearDown()
			}),
		},
		{
			name:   "faults/setup-torn-down",
			proves: "Whichever call fails during SetUp, TearDown puts right what it left.",
			each:   sweep(setUpOperation, func(v *podVolume, _ error) { v.MustTearDown() }),
		},
		{
			name:   "faults/nothing-done",
			proves: "Where SetUp fails with an error that is marked by NothingDone, it left neither mount, directory nor file.",
			each: sweep(setUpOperation, func(v *podVolume, err error) {
				if err == nil || volume.IsUncertain(err) {
					v.MustTearDown()
					return
				}
				v.ReleaseMounted()
			}),
		},
		{
			name:   "faults/refresh",
			proves: "Whichever call fails during another SetUp, a volume that is in use stays as it is.",
			each: sweep(refreshOperation, func(v *podVolume, err error) {
				v.assertShown()
				v.MustSetUp()
				v.assertShown()
				v.MustTearDown()
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
					v.MustTearDown()
				}
			}),
		},
		{
			name:   "faults/teardown-set-up",
			proves: "Whichever call fails during TearDown, the volume can be set up again.",
			each: sweep(tearDownOperation, func(v *podVolume, _ error) {
				v.MustSetUp()
				v.assertShown()
				v.MustTearDown()
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
				_, remove := n.sim.Disturb(p, sim.Disturbance{Err: sim.ErrInjected})
				n.sim.ResetCalls()
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
				n.sim.Disturb(p, sim.Disturbance{Err: sim.ErrInjected})
				if err := op.run(k.Context(), v); err != nil && !errors.Is(err, sim.ErrInjected) {
					k.Errorf("the error does not wrap its cause: %v", err)
				}
			})
		}
	}
}

// retryChecks are about plugins that remember failures.
func retryChecks() []check {
	return []check{{
		name:   "faults/retry-at",
		proves: "After many failures in a row, and many calls that hang, an error that says when to try again names a time within the hour, and SetUp succeeds once the trouble is over, at that time or soon after.",
		each: func(k *kit, c Case) {
			checkRetryAt(k, c, "the mounter and the roles time out", false)
			checkRetryAt(k, c, "the mounter and the roles hang", true)
		},
	}}
}

const (
	manyFailures = 8
	// mayRetry is how often a caller tries again that keeps to the times.
	mayRetry = 5
	// longestRetry is how far ahead another attempt may be put off, and
	// defaultRetry when there is one after an error that says nothing.
	longestRetry, defaultRetry = time.Hour, 2 * time.Minute
)

func checkRetryAt(k *kit, c Case, trouble string, hang bool) {
	k.bubble(func(k *kit) {
		defer k.Explain("SetUp, where %s for long", trouble)
		v := k.node(c).volume("a")
		end := v.node.sim.TroubleAll(hang)
		for range manyFailures {
			ctx, cancel := context.WithTimeout(k.Context(), sim.Patience)
			v.waitFor(k, v.SetUpWithDevice(ctx))
			cancel()
		}
		end()
		for range mayRetry {
			err := v.SetUpWithDevice(k.Context())
			if err == nil {
				v.assertShown()
				v.MustTearDown()
				v.node.AssertTornDown(k)
				return
			}
			v.waitFor(k, err)
		}
		k.Errorf("%d attempts have failed after the trouble was over", mayRetry)
	})
}

// waitFor waits until the error says to try again, or for some time.
func (v *podVolume) waitFor(k *kit, err error) {
	k.Helper()
	pause := defaultRetry
	if at, ok := volume.RetryAt(err); ok {
		pause = time.Until(at)
		if at.IsZero() || pause > longestRetry {
			k.Errorf("the error says to try again at %v, now it is %v: %v", at, time.Now(), err)
			pause = defaultRetry
		}
	}
	time.Sleep(max(pause, time.Second))
}
