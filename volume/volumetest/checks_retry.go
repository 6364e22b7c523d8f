package volumetest

import (
	"context"
	"time"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
)

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
		end := v.node.troubleAll(hang)
		for range manyFailures {
			ctx, cancel := context.WithTimeout(k.Context(), patience)
			v.waitFor(k, v.setUp(ctx))
			cancel()
		}
		end()
		for range mayRetry {
			err := v.setUp(k.Context())
			if err == nil {
				v.assertShown()
				v.mustTearDown()
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

// troubleAll lets every call of the mounter and the roles hang, or fail as those
// of a server that does not answer, until end.
func (n *Node) troubleAll(hang bool) (end func()) {
	var err error
	release := make(chan struct{})
	if !hang {
		err = &mount.Error{Op: mount.OpMount, Cause: mount.ErrTimedOut, Uncertain: true, Err: errInjected}
		close(release)
	}
	removeMounter := n.mounter.Inject(fakemount.Fault{Err: err, Release: release})
	removeRole := n.InjectRole(fakehost.RoleFault{Err: err, Release: release})
	return func() {
		removeMounter()
		removeRole()
		if hang {
			close(release)
		}
	}
}
