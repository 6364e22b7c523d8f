package persistentvolume_test

import (
	"testing"
	"testing/synctest"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// A claim lets go of its volume, but the answers are lost, and the cache does not
// hear of it: what the API says counts, and is not asked for without a pause.
func TestAClaimIsGoneWhileTheCacheStillHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"))).withStorage()
		w.start()
		w.settle()
		w.wantBound("data", "pvc-uid-data")
		calls := 0
		w.client.Inject(fault.Fault[objectstest.Call]{After: true, Err: errLost, Match: func(call objectstest.Call) bool {
			calls++
			return isWrite(call) && call.Ref.Kind == "PersistentVolumeClaim" && calls < 5000 // so that a loop without pauses ends
		}})
		// The cache hears that the claim is to go, and of nothing after that.
		var release func()
		w.client.Inject(fault.Fault[objectstest.Call]{Nth: 1, Match: func(call objectstest.Call) bool {
			return call.Verb == "update" && call.Ref.Kind == "PersistentVolumeClaim"
		}, Hook: func() { release = w.client.Hold("PersistentVolumeClaim") }})
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		w.wantGone("PersistentVolumeClaim", "ops", "data")
		w.wantGone("PersistentVolume", "", "pvc-uid-data")
		release()
		w.settle()
		if calls > 300 {
			t.Errorf("%d calls", calls)
		}
	})
}
