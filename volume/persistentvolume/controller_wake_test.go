package persistentvolume_test

import (
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
)

// A claim that names a volume, or is meant by it, waits as long as it is being
// emptied for an earlier one, and no longer.
func TestTheClaimOfAVolumeThatIsBeingEmptiedGetsItThen(t *testing.T) {
	for how, tc := range map[string]struct {
		claim claimOption
		pv    pvOption
	}{
		"named": {naming("pv"), func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil }},
		"meant": {func(*v1.PersistentVolumeClaim) {}, forClaim("next", "")},
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, newPV("pv", "1Gi", withPolicy(v1.PersistentVolumeReclaimRecycle)), newClaim("data", "1Gi")).withStorage()
				w.start()
				w.settle()
				calls := w.storage.hold()
				w.delete("PersistentVolumeClaim", "ops", "data")
				w.settle()
				w.create(newClaim("next", "1Gi", tc.claim))
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
		w := newWorld(t, storageClass("local", waitForConsumer), localPV("pv", "1Gi", "node1"), newClaim("a", "1Gi", ofClass("local")))
		w.start()
		w.settle()
		p, err := w.controller.Place(t.Context(), podOf("a"), nodes())
		if err != nil {
			t.Fatal(err)
		}
		w.create(newClaim("b", "1Gi", ofClass("local"), naming("pv")))
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
		w := newWorld(t, newPV("pv", "1Gi"), newClaim("large", "5Gi", naming("pv")))
		w.start()
		w.settle()
		w.create(newClaim("small", "1Gi"))
		w.settle()
		w.wantClaim("small", v1.ClaimPending)
		w.delete("PersistentVolumeClaim", "ops", "large")
		w.settle()
		w.wantBound("small", "pv")
	})
}
