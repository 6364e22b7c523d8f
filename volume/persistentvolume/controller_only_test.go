package persistentvolume_test

import (
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
)

// A controller that is to see to one claim and its volume leaves all others as
// they are: those that could be bound, and what is offered to them.
func TestOnlyWhatItIsToldTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("mine", "1Gi"), pvbuild.NewPV("other", "5Gi"), pvbuild.NewClaim("left", "5Gi"), pvbuild.NewClaim("meant", "1Gi", pvbuild.Naming("mine")))
		w.config.Only = func(ref volume.ObjectRef) bool { return ref.Name == "mine" || ref.Name == "meant" }
		w.start()
		w.settle()
		if c := w.claim("meant"); c.Status.Phase != v1.ClaimBound {
			t.Errorf("its claim is %+v", c.Status)
		}
		if c := w.claim("left"); c.Spec.VolumeName != "" || c.Status.Phase != "" || len(c.Finalizers) > 0 {
			t.Errorf("the other claim is %+v", c)
		}
		if pv := w.pv("other"); pv.Spec.ClaimRef != nil || pv.Status.Phase != "" || len(pv.Finalizers) > 0 {
			t.Errorf("the other volume is %+v", pv)
		}
		// It is deleted, and its volume offered again: to nobody here.
		w.delete("PersistentVolumeClaim", "ops", "meant")
		w.settle()
		pv := w.pv("mine").DeepCopy()
		if pv.Status.Phase != v1.VolumeReleased {
			t.Fatalf("its volume is %+v", pv.Status)
		}
		pv.Spec.ClaimRef = nil
		if _, err := w.api.Update(t.Context(), pv); err != nil {
			t.Fatal(err)
		}
		w.create(pvbuild.NewClaim("next", "1Gi"))
		w.settle()
		if pv := w.pv("mine"); pv.Status.Phase != v1.VolumeAvailable || pv.Spec.ClaimRef != nil {
			t.Errorf("its volume is %+v", pv)
		}
	})
}
