package volumemanager_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestExplainOfOneReturnsThatAlone looks up a claim, and a pod, beside many pods.
func TestExplainOfOneReturnsThatAlone(t *testing.T) {
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
	for i := range 100 {
		mustPass(t, second(manager.SetUpPod(t.Context(), newPod(fmt.Sprintf("p%d", i), emptyDirVolume("scratch", "")))))
	}
	if rows := manager.ExplainClaim(name); len(rows) != 1 || rows[0].Pod.Name != "one" {
		t.Errorf("of the claim: %v", rows)
	}
	if rows := manager.ExplainPod(one.UID); len(rows) != 1 || rows[0].Pod.Name != "one" {
		t.Errorf("of the pod: %v", rows)
	}
	mustPass(t, manager.TearDownPod(t.Context(), one.UID))
	if rows := append(manager.ExplainClaim(name), manager.ExplainPod(one.UID)...); len(rows) > 0 {
		t.Errorf("after its end: %v", rows)
	}
}
