package index_test

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// Stores that forget begin anew with low versions.
func TestAVolumeMadeAnewCounts(t *testing.T) {
	of := func(uid, version string) pvbuild.Option {
		return func(pv *v1.PersistentVolume) { pv.UID, pv.ResourceVersion = types.UID(uid), version }
	}
	x := index.New(pvbuild.NewPV("a", "9Gi", of("old", "9")))
	x.Put(pvbuild.NewPV("a", "1Gi", of("new", "1")))
	if _, err := x.Match(index.Wanted{Claim: pvbuild.NewClaim("c", "5Gi")}); err == nil {
		t.Error("the size of the volume that was there before is believed")
	}
}

// What goes from one host leaves the others to be found.
func TestVolumesOfOtherHostsAreFound(t *testing.T) {
	x := index.New(pvbuild.NewPV("a", "1Gi", pvbuild.OnHost("node1")), pvbuild.NewPV("b", "1Gi", pvbuild.OnHost("node2")))
	x.Delete("a")
	for node, want := range map[string]string{"node1": "", "node2": "b"} {
		pv, err := x.Match(index.Wanted{Claim: pvbuild.NewClaim("c", "1Gi"), NodeName: node})
		if pvbuild.VolumeName(pv) != want || (err == nil) != (want != "") {
			t.Errorf("on %s: %v, %v", node, pvbuild.VolumeName(pv), err)
		}
	}
}

func TestUnboundErrorCountsMany(t *testing.T) {
	var volumes []*v1.PersistentVolume
	for i := range 1000 {
		volumes = append(volumes, pvbuild.NewPV(fmt.Sprintf("small-%03d", i), "1Gi", pvbuild.Class("fast")), pvbuild.NewPV(fmt.Sprintf("far-%03d", i), "9Gi", pvbuild.Class("fast"), pvbuild.OnHost("node2")))
	}
	_, err := index.New(volumes...).Match(index.Wanted{Claim: pvbuild.NewClaim("c", "5Gi", pvbuild.OfClass("fast")), NodeName: "node1"})
	const want = `bind PersistentVolumeClaim "ops/c": the claim is not bound: too small (small-000: 1Gi of 5Gi; small-001: 1Gi of 5Gi; small-002: 1Gi of 5Gi and 997 more), ` +
		`not reachable from this node (far-000: not on node1; far-001: not on node1; far-002: not on node1 and 997 more)`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
func TestUnboundErrorNamesEveryReason(t *testing.T) {
	x := index.New(pvbuild.NewPV("a", "1Gi", pvbuild.Class("fast")), pvbuild.NewPV("b", "9Gi"), pvbuild.NewPV("d", "2Gi", pvbuild.Class("fast")),
		pvbuild.NewPV("e", "3Gi", pvbuild.Class("fast")), pvbuild.NewPV("f", "4Gi", pvbuild.Class("fast")))
	_, err := x.Match(index.Wanted{Claim: pvbuild.NewClaim("c", "5Gi", pvbuild.OfClass("fast")), NodeName: "node1"})
	const want = `bind PersistentVolumeClaim "ops/c": the claim is not bound: too small (a: 1Gi of 5Gi; d: 2Gi of 5Gi; e: 3Gi of 5Gi and 1 more), other storage class (b: class "")`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
