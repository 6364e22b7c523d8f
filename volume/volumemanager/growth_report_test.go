package volumemanager_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
)

// A claim that cannot be told does not keep its pod waiting; it is told later, and nothing is
// grown for that.
func TestGrowthThatIsReportedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrowthWorld(t, v1.ReadWriteOnce)
		g.enlarge("2Gi", pending)
		manager, stop := g.start()
		repair := g.resizes.calls.Inject(fault.Fault[string]{Err: errors.New("the API server is away")})
		mustSetUp(t, manager, growthPod("one"))
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(g.resizes.calls.Calls()); n < 10 || n > 50 {
			t.Errorf("%d reports in an hour", n)
		}
		g.has("1Gi", v1.PersistentVolumeClaimNodeResizePending)
		stop()
		repair()
		manager, _ = g.start()
		mustSetUp(t, manager, growthPod("one"))
		g.has("2Gi", "")
		if calls := g.grown(); len(calls) != 1 {
			t.Errorf("calls %q", calls)
		}
	})
}

// The claim says that the node grows its volume, from before the plugin is called on. It stays
// so after a failure, which the claim tells if it is no doubt one. When the claim asks for
// another size then, this one is given up.
func TestClaimSaysThatItGrows(t *testing.T) {
	const inProgress = v1.PersistentVolumeClaimNodeResizeInProgress
	synctest.Test(t, func(t *testing.T) {
		g := newGrowthWorld(t, v1.ReadWriteOnce)
		g.world.resizes = startResizes{g.resizes}
		manager, _ := g.start()
		mustSetUp(t, manager, growthPod("one"))
		look := g.disk.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("NodeExpand"), Hook: func() { g.has("1Gi", inProgress) }})
		g.enlarge("2Gi", pending)
		synctest.Wait()
		g.has("2Gi", "")
		if calls := g.grown(); len(calls) != 1 {
			t.Errorf("calls %q", calls)
		}
		look()

		failed := func() bool {
			return slices.ContainsFunc(g.claim().Status.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
				return c.Type == v1.PersistentVolumeClaimNodeResizeError
			})
		}
		doubt := g.disk.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("NodeExpand"), Err: errors.New("no answer")})
		g.enlarge("3Gi", pending)
		synctest.Wait()
		if g.has("2Gi", inProgress); failed() {
			t.Errorf("conditions %v", g.claim().Status.Conditions)
		}
		g.disk.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("NodeExpand"), Err: fmt.Errorf("%w: permission denied", volume.ErrResizeFailed)})
		doubt()
		g.ask("3Gi")
		time.Sleep(time.Hour)
		synctest.Wait()
		if g.has("2Gi", inProgress); !failed() {
			t.Errorf("conditions %v", g.claim().Status.Conditions)
		}
		if g.grown(); manager.Explain()[0].Err == nil {
			t.Errorf("Explain: %+v", manager.Explain()[0])
		}
		g.ask("2Gi")
		synctest.Wait()
		g.has("2Gi", v1.PersistentVolumeClaimNodeResizeInfeasible)
		if calls := g.grown(); len(calls) != 1 || manager.Explain()[0].Err != nil {
			t.Errorf("calls %q, Explain: %+v", calls, manager.Explain()[0])
		}
	})
}

// A claim that cannot be told that its volume grows does not keep it from that.
func TestGrowthThatBeginsUntold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrowthWorld(t, v1.ReadWriteOnce)
		g.world.resizes = startResizes{g.resizes}
		g.resizes.calls.Inject(fault.Fault[string]{Match: func(c string) bool { return strings.HasSuffix(c, "begins") }, Err: errors.New("the API server is away")})
		manager, _ := g.start()
		g.enlarge("2Gi", pending)
		mustSetUp(t, manager, growthPod("one"))
		synctest.Wait()
		g.has("2Gi", "")
	})
}

// A controller asks anew at once for a size that is infeasible, and the node does not see what
// the claim said in between.
func TestInfeasibleSizeIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrowthWorld(t, v1.ReadWriteOnce)
		manager, _ := g.start()
		mustSetUp(t, manager, growthPod("one"))
		g.disk.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("NodeExpand"), Err: volume.ErrResizeInfeasible})
		g.resizes.calls.Inject(fault.Fault[string]{Nth: 1, After: true, Hook: func() { g.enlarge("2Gi", pending) }})
		g.enlarge("2Gi", pending)
		time.Sleep(time.Hour)
		synctest.Wait()
		g.has("1Gi", v1.PersistentVolumeClaimNodeResizeInfeasible)
		if calls := g.grown(); len(calls) != 2 {
			t.Errorf("calls %q, want one for each time that it was asked for", calls)
		}
	})
}
