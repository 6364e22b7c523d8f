package persistentvolume_test

import (
	"testing"
	"testing/synctest"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// Each write of a binding takes effect, and its answer is lost, while the cache
// hears of nothing: the controller asks the API itself, and goes on.
func TestABindingWhoseAnswersAreLost(t *testing.T) {
	for n := range 4 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, pvbuild.NewPV("pv", "1Gi"), pvbuild.NewClaim("data", "1Gi"))
			w.start()
			defer w.client.Hold("PersistentVolume")()
			defer w.client.Hold("PersistentVolumeClaim")()
			w.client.Inject(fault.Fault[objectstest.Call]{Match: isWrite, Nth: n + 1, After: true, Err: errLost})
			w.settle()
			w.wantBound("data", "pv")
			if got := w.client.Count(); got > 20 {
				t.Errorf("%d calls", got)
			}
		})
		if t.Failed() {
			t.Fatalf("the answer to write %d was lost", n+1)
		}
	}
}
