package controller_test

import (
	"maps"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// tier is a class of attributes; the driver knows iops.
func tier(name, parameter, value string) *storagev1.VolumeAttributesClass {
	return &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: driverName, Parameters: map[string]string{parameter: value}}
}

func (m *machine) wantsTier(name string) {
	m.t.Helper()
	m.apply(tier("slow", "iops", "100"), tier("quick", "iops", "9000"), tier("odd", "colour", "red"), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"), pvbuild.WantsAttributes(name)))
}

// wantTier wants a claim to have a class, and its volume that one's parameters.
func (m *machine) wantTier(name, iops string, state v1.PersistentVolumeClaimModifyVolumeStatus) {
	m.t.Helper()
	claim, pv := m.claim(), m.wantBound()
	has, err := m.driver.Modified(pv.Spec.CSI.VolumeHandle)
	if err != nil || !maps.Equal(has, map[string]string{"iops": iops}) {
		m.t.Errorf("the volume has %v (%v), want iops %s", has, err, iops)
	}
	if ptr.Deref(claim.Status.CurrentVolumeAttributesClassName, "") != name || ptr.Deref(pv.Spec.VolumeAttributesClassName, "") != name ||
		ptr.Deref(claim.Status.ModifyVolumeStatus, v1.ModifyVolumeStatus{}).Status != state {
		m.t.Errorf("the claim is %+v, and its volume has %v", claim.Status, pv.Spec.VolumeAttributesClassName)
	}
}

// awaitTier waits until a claim has a class: what has failed before that was stored is tried
// again after a pause, for which the cluster counts as idle.
func (m *machine) awaitTier(name string, state v1.PersistentVolumeClaimModifyVolumeStatus) {
	m.t.Helper()
	changed := make(chan struct{}, 1)
	defer m.cluster.Objects().WatchKind("PersistentVolumeClaim", func(volume.ObjectRef) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})()
	for {
		is := m.claim().Status
		if ptr.Deref(is.CurrentVolumeAttributesClassName, "") == name && ptr.Deref(is.ModifyVolumeStatus, v1.ModifyVolumeStatus{}).Status == state {
			break
		}
		select {
		case <-changed:
		case <-m.t.Context().Done():
			m.t.Fatalf("the claim is %+v", is)
		}
	}
	m.idle()
}

// A claim that names another VolumeAttributesClass has its volume changed, whatever strikes the
// call; a class that the driver refuses changes nothing.
func TestClaimChangesItsVolumeWithoutACluster(t *testing.T) {
	eachStrike(t, func(t *testing.T, s strike) {
		m := newMachine(t, csitest.Config{})
		m.wantsTier("slow")
		m.idle()
		m.wantTier("slow", "100", "")
		m.survive(s, "ControllerModifyVolume", func() { m.wantsTier("quick") })
		m.wantsTier("quick") // classes are not stored
		switch {
		case s.lies: // its word is taken
			m.idle()
			return
		case s.name == codes.InvalidArgument.String():
			m.awaitTier("slow", v1.PersistentVolumeClaimModifyVolumeInfeasible)
			m.wantTier("slow", "100", v1.PersistentVolumeClaimModifyVolumeInfeasible)
			return
		}
		m.awaitTier("quick", "")
		m.wantTier("quick", "9000", "")
		m.wantsTier("odd")
		m.idle()
		m.wantTier("quick", "9000", v1.PersistentVolumeClaimModifyVolumeInfeasible)
		m.wantsTier("slow")
		m.idle()
		m.wantTier("slow", "100", "")
	})
}
