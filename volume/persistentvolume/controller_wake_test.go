package persistentvolume_test

import (
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
)

// A claim that names a volume, or is meant by it, waits as long as it is being
// emptied for an earlier one, and no longer.
func TestTheClaimOfAVolumeThatIsBeingEmptiedGetsItThen(t *testing.T) {
	for how, tc := range map[string]struct {
		claim pvbuild.ClaimOption
		pv    pvbuild.Option
	}{
		"named": {pvbuild.Naming("pv"), func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil }},
		"meant": {func(*v1.PersistentVolumeClaim) {}, pvbuild.ForClaim("next", "")},
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, pvbuild.NewPV("pv", "1Gi", withPolicy(v1.PersistentVolumeReclaimRecycle)), pvbuild.NewClaim("data", "1Gi")).withStorage()
				w.start()
				w.settle()
				calls := w.storage.hold()
				w.delete("PersistentVolumeClaim", "ops", "data")
				w.settle()
				w.create(pvbuild.NewClaim("next", "1Gi", tc.claim))
				w.settle()
				w.change("pv", tc.pv)
				w.settle()
				w.wantClaim("next", v1.ClaimPending)
				calls.release("Recycle pv")
				w.settle()
				w.wantBound("next", "pv")
			})
		})
	}
}

// A volume that was kept for a pod that is not placed after all goes to the claim
// that names it, or that it means.
func TestRollbackGivesTheVolumeToTheClaimThatNamesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("local", waitForConsumer), localPV("pv", "1Gi", "node1"), pvbuild.NewClaim("a", "1Gi", pvbuild.OfClass("local")))
		w.start()
		w.settle()
		p, err := w.controller.Place(t.Context(), pvbuild.PodOf("a"), nodes())
		if err != nil {
			t.Fatal(err)
		}
		w.create(pvbuild.NewClaim("b", "1Gi", pvbuild.OfClass("local"), pvbuild.Naming("pv")))
		w.settle()
		w.wantClaim("b", v1.ClaimPending)
		p.Rollback()
		w.settle()
		w.wantBound("b", "pv")
	})
}

// A claim that names a volume and cannot have it keeps it from others, until it
// goes.
func TestAVolumeThatWasNamedInVainIsOfferedToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi"), pvbuild.NewClaim("large", "5Gi", pvbuild.Naming("pv")))
		w.start()
		w.settle()
		w.create(pvbuild.NewClaim("small", "1Gi"))
		w.settle()
		w.wantClaim("small", v1.ClaimPending)
		w.delete("PersistentVolumeClaim", "ops", "large")
		w.settle()
		w.wantBound("small", "pv")
	})
}
