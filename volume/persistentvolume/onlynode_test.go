package persistentvolume_test

import (
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Where there is but one node, a claim that waits for no pod is not given what
// that node cannot reach.
func TestVolumesOfOtherNodesAreNotForTheOnlyOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newPV("elsewhere", "1Gi", onHost("node2")), newPV("here", "2Gi", onHost("node1")), newPV("labelled", "3Gi", affinity(require("disk", v1.NodeSelectorOpExists))))
		w.config.NodeName = "node1"
		w.start()
		w.create(newClaim("first", "1Gi"))
		w.settle()
		w.wantBound("first", "here")
		w.create(newClaim("second", "1Gi"))
		w.settle()
		w.wantClaim("second", v1.ClaimPending)
		err := w.controller.Explain(types.NamespacedName{Namespace: "ops", Name: "second"})
		if err == nil || !strings.Contains(err.Error(), "not reachable from this node (elsewhere: not on node1; labelled: not on node1)") {
			t.Errorf("err = %v", err)
		}
		w.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Labels: map[string]string{"disk": "ssd"}}})
		w.settle()
		w.wantBound("second", "labelled")
	})
}

func TestAClaimThatWaitsForAnExternalProvisionerSaysWhatDidNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", func(c *storagev1.StorageClass) { c.Provisioner = "example.com/elsewhere" }), newPV("small", "1Ki", class("fast")), newClaim("data", "1Gi", ofClass("fast")))
		w.start()
		w.settle()
		err := w.controller.Explain(types.NamespacedName{Namespace: "ops", Name: "data"})
		if err == nil || !strings.Contains(err.Error(), "external provisioner example.com/elsewhere: too small (small: 1Ki of 1Gi)") {
			t.Errorf("err = %v", err)
		}
	})
}
