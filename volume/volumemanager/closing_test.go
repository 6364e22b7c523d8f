package volumemanager_test

import (
	"testing"
	"testing/synctest"
	"time"
)

// What the records still have to sync when the manager is stopped takes a busy disk
// seconds. Whoever comes next for the root is not told meanwhile that it is in use.
func TestRootIsFreeOnceRunHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		pod := newPod("web", nfsVolume("v", "10.0.0.1"))
		mustSetUp(t, manager, pod)
		mustTearDown(t, manager, pod)
		manager.DelaySyncs(10 * time.Second)
		stop()
		_, stop = w.start()
		stop()
		w.assertClean()
	})
}
