package volumemanager_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestExplainOfOneCostsNotTheNode counts what it takes to look up a claim, and a
// pod, beside few pods and beside many.
func TestExplainOfOneCostsNotTheNode(t *testing.T) {
	w := newWorld(t)
	claim, pv := boundPair("nfs-211", "nfs211")
	w.add(claim, pv)
	w.fake.Serve("10.20.172.211:/nfs", t.TempDir())
	manager, stop := w.start()
	defer stop()
	name := types.NamespacedName{Namespace: "ops-test", Name: "nfs-211"}
	one := newPod("one", claimVolume("data", "nfs-211", false))
	if _, err := manager.SetUpPod(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	cost := func() (float64, float64) {
		if rows := manager.ExplainClaim(name); len(rows) != 1 || rows[0].Pod.Name != "one" {
			t.Errorf("of the claim: %v", rows)
		}
		if rows := manager.ExplainPod(one.UID); len(rows) != 1 || rows[0].Pod.Name != "one" {
			t.Errorf("of the pod: %v", rows)
		}
		return testing.AllocsPerRun(20, func() { manager.ExplainClaim(name) }), testing.AllocsPerRun(20, func() { manager.ExplainPod(one.UID) })
	}
	claimAlone, podAlone := cost()
	for i := range 100 {
		mustPass(t, second(manager.SetUpPod(t.Context(), newPod(fmt.Sprintf("p%d", i), emptyDirVolume("scratch", "")))))
	}
	if ofClaim, ofPod := cost(); ofClaim > claimAlone+2 || ofPod > podAlone+2 { // the race detector drops some
		t.Errorf("alone %v and %v allocations, beside 100 pods %v and %v", claimAlone, podAlone, ofClaim, ofPod)
	}
	mustPass(t, manager.TearDownPod(t.Context(), one.UID))
	if rows := append(manager.ExplainClaim(name), manager.ExplainPod(one.UID)...); len(rows) > 0 {
		t.Errorf("after its end: %v", rows)
	}
}
