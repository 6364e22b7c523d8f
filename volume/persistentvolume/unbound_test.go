package persistentvolume_test

import (
	"testing"

	"github.com/podvol/podvol/volume/persistentvolume"
)

func TestUnboundErrorNamesEveryReason(t *testing.T) {
	x := persistentvolume.NewIndex(newPV("a", "1Gi", class("fast")), newPV("b", "9Gi"), newPV("d", "2Gi", class("fast")),
		newPV("e", "3Gi", class("fast")), newPV("f", "4Gi", class("fast")))
	_, err := x.Match(persistentvolume.Wanted{Claim: newClaim("c", "5Gi", ofClass("fast")), NodeName: "node1"})
	const want = `bind PersistentVolumeClaim "ops/c": the claim is not bound: too small (a: 1Gi of 5Gi; d: 2Gi of 5Gi; e: 3Gi of 5Gi and 1 more), other storage class (b: class "")`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
