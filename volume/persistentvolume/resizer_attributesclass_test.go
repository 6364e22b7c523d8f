package persistentvolume_test

import (
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/util/testenv/pvbuild"
)

func attributesClass(name, driver string) *storagev1.VolumeAttributesClass {
	c := &storagev1.VolumeAttributesClass{DriverName: driver, Parameters: map[string]string{"iops": "100"}}
	c.Name = name
	return c
}

// askAttributes has the claim's owner name another class.
func (w *world) askAttributes(claim, class string) {
	w.t.Helper()
	w.changeClaim(claim, pvbuild.WantsAttributes(class))
	w.settle()
}

// wantAttributes checks what a claim's status says: its class, and what it is to
// have, and how far that is.
func (w *world) wantAttributes(claim, current, target string, state v1.PersistentVolumeClaimModifyVolumeStatus) {
	w.t.Helper()
	status := w.claim(claim).Status
	if got := ptr.Deref(status.CurrentVolumeAttributesClassName, ""); got != current {
		w.t.Errorf("claim %s has the attributes %q, want %q", claim, got, current)
	}
	if got := ptr.Deref(status.ModifyVolumeStatus, v1.ModifyVolumeStatus{}); got.TargetVolumeAttributesClassName != target || got.Status != state {
		w.t.Errorf("claim %s is to have %q (%s), want %q (%s); events: %s", claim, got.TargetVolumeAttributesClassName, got.Status, target, state, w.events)
	}
}

func TestAttributesAreGivenToTheProvisioner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made), attributesClass("gold", storagePlugin), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"), pvbuild.WantsAttributes("gold")),
			pvbuild.NewClaim("plain", "1Gi", pvbuild.OfClass("fast"))).withStorage()
		w.start()
		w.settle()
		w.wantBound("data", "pvc-uid-data")
		w.wantAttributes("data", "gold", "", "")
		w.wantAttributes("plain", "", "", "")
		pv := w.pv("pvc-uid-data")
		if got := ptr.Deref(pv.Spec.VolumeAttributesClassName, ""); got != "gold" {
			t.Errorf("the volume has the attributes %q", got)
		}
		if got := pv.Annotations["example.com/attributes"]; got != "gold 100" {
			t.Errorf("the provisioner was given %q", got)
		}
	})
}

func TestAttributesThatNobodyHasMakeNoVolume(t *testing.T) {
	for name, tc := range map[string]struct {
		class *storagev1.VolumeAttributesClass
		want  string
	}{
		"a class that there is not": {want: `volumeattributesclass.storage.k8s.io "gold" not found; create it`},
		"another driver's class":    {class: attributesClass("gold", "other.example.com"), want: `a class of the driver "other.example.com"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, storageClass("fast", made), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"), pvbuild.WantsAttributes("gold"))).withStorage()
				if tc.class != nil {
					w.create(tc.class)
				}
				w.start()
				w.settle()
				w.wantUnbound("data", [][]string{{"data: Warning ProvisioningFailed", tc.want}})
				if names := w.stored(); len(names) != 0 {
					t.Errorf("storage was made: %q", names)
				}
				if tc.class != nil {
					w.delete("VolumeAttributesClass", "", "gold")
				}
				w.create(attributesClass("gold", storagePlugin))
				w.settle()
				w.wantBound("data", "pvc-uid-data")
			})
		})
	}
}

// What the owner asks of a bound claim is Pending until somebody takes it up, who
// then says how far it is; and no restart loses it.
func TestOtherAttributesAreRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, attributesClass("gold", "d"), attributesClass("silver", "d"), pvbuild.NewPV("pv", "1Gi", pvbuild.WithAttributes("gold")), pvbuild.NewClaim("data", "1Gi", pvbuild.WantsAttributes("gold")))
		w.start()
		w.settle()
		w.wantBound("data", "pv")
		w.wantAttributes("data", "gold", "", "")
		w.askAttributes("data", "lead")
		w.wantAttributes("data", "gold", "lead", v1.PersistentVolumeClaimModifyVolumePending)
		w.events.want(t, `data: Warning VolumeModifyFailed volumeattributesclass.storage.k8s.io "lead" not found; create it`)
		w.askAttributes("data", "silver")
		w.stop()
		w.start()
		w.settle()
		w.wantAttributes("data", "gold", "silver", v1.PersistentVolumeClaimModifyVolumePending)
		if n := w.events.count(`data: Normal ExternalModifying waiting for an external controller to give this PVC the VolumeAttributesClass "silver"`); n != 2 {
			t.Errorf("two processes have told of it %d times: %s", n, w.events)
		}
		w.wantQuiet(0)
		// Its modifier takes it up: from then on the record is that one's.
		w.setStatus("data", func(s *v1.PersistentVolumeClaimStatus) {
			s.ModifyVolumeStatus.Status = v1.PersistentVolumeClaimModifyVolumeInProgress
		})
		w.askAttributes("data", "gold")
		w.wantAttributes("data", "gold", "silver", v1.PersistentVolumeClaimModifyVolumeInProgress)
		w.change("pv", pvbuild.WithAttributes("silver"))
		w.settle()
		w.setStatus("data", func(s *v1.PersistentVolumeClaimStatus) { s.ModifyVolumeStatus = nil })
		w.wantAttributes("data", "silver", "gold", v1.PersistentVolumeClaimModifyVolumePending)
		// Taken back before anybody has begun, nothing is left of it.
		w.askAttributes("data", "silver")
		w.wantAttributes("data", "silver", "", "")
		w.wantBound("data", "pv")
	})
}

// What was found infeasible stays so until something else is asked for.
func TestInfeasibleAttributes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi"), pvbuild.NewClaim("data", "1Gi"))
		w.start()
		w.settle()
		w.askAttributes("data", "gold")
		w.setStatus("data", func(s *v1.PersistentVolumeClaimStatus) {
			s.ModifyVolumeStatus.Status = v1.PersistentVolumeClaimModifyVolumeInfeasible
		})
		w.wantAttributes("data", "", "gold", v1.PersistentVolumeClaimModifyVolumeInfeasible)
		w.askAttributes("data", "silver")
		w.wantAttributes("data", "", "silver", v1.PersistentVolumeClaimModifyVolumePending)
	})
}

// Asking for a size and for attributes at once is told once each.
func TestBothWishesAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := grownWorld(t)
		w.askAttributes("data", "gold")
		w.ask("data", "5Gi")
		w.change("pv", pvbuild.Labelled("seen", "again"))
		w.settle()
		w.events.want(t, "data: Normal ExternalExpanding ")
		w.events.want(t, "data: Warning VolumeModifyFailed ")
		w.wantQuiet(0)
	})
}
