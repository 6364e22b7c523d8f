package embedded_test

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// A node's reports are in the claim's status when they return, also after a restart. Those
// about another claim of that name change nothing.
func TestNodeResize(t *testing.T) {
	m := newMachine(t)
	m.run()
	m.mustBind(static + claimOfStatic)
	name := types.NamespacedName{Namespace: "default", Name: "data"}
	state := func() v1.ClaimResourceStatus {
		return m.claim("data").Status.AllocatedResourceStatuses[v1.ResourceStorage]
	}
	claim := m.claim("data")
	if err := retry.Do(t.Context(), objects.ErrConflict, func() error { // the controller writes, too
		next := m.claim("data").DeepCopy()
		next.Status.AllocatedResourceStatuses = pvapi.SetEntry(next.Status.AllocatedResourceStatuses, v1.ResourceStorage, v1.PersistentVolumeClaimNodeResizePending)
		_, err := m.Objects().UpdateStatus(t.Context(), next)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	size := resource.MustParse("100Gi")
	if err := errors.Join(m.ReportNodeResizeStarted(t.Context(), name, "another"), m.ReportNodeResize(t.Context(), name, "another", size, nil)); err != nil || state() != v1.PersistentVolumeClaimNodeResizePending {
		t.Errorf("of another claim: %v, state %q", err, state())
	}
	if err := m.ReportNodeResizeStarted(t.Context(), name, claim.UID); err != nil {
		t.Fatal(err)
	}
	m.restart()
	if state() != v1.PersistentVolumeClaimNodeResizeInProgress {
		t.Errorf("begun, and restarted: state %q", state())
	}
	if err := m.ReportNodeResize(t.Context(), name, claim.UID, size, nil); err != nil {
		t.Fatal(err)
	}
	if got := m.claim("data").Status.Capacity[v1.ResourceStorage]; state() != "" || got.Cmp(size) != 0 {
		t.Errorf("grown: state %q, size %s", state(), got.String())
	}
	m.stop()
	if err := m.ReportNodeResize(t.Context(), name, claim.UID, resource.MustParse("200Gi"), nil); err == nil {
		t.Error("after Close a report is no error")
	}
}
