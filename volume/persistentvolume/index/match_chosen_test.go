package index_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// The rules for volumes and claims that name each other: FindMatchingVolume
// for claimRef, checkVolumeSatisfyClaim of the PersistentVolume controller for
// spec.volumeName.
func TestMatchChosen(t *testing.T) {
	ssd := pvbuild.SelectingPairs(map[string]string{"disk": "ssd"})
	inOtherNamespace := func(pv *v1.PersistentVolume) {
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "dev", Name: "c"}
	}
	for name, tc := range map[string]matchCase{
		// By the volume's claimRef.
		"pre-bound wins, of any class":         {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi"), pvbuild.NewPV("b", "9Gi", pvbuild.Class("x"), pvbuild.ForClaim("c", ""))), want: "b"},
		"pre-bound wins, with more modes":      {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithModes(pvbuild.Rwo)), pvbuild.NewPV("b", "9Gi", pvbuild.ForClaim("c", ""))), unplaced: true, want: "b"},
		"pre-bound with this UID":              {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("b", "9Gi", pvbuild.ForClaim("c", "uid-c"))), want: "b"},
		"pre-bound to an earlier one":          {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("b", "9Gi", pvbuild.ForClaim("c", "old"))), reason: index.BoundElsewhere},
		"pre-bound in another namespace":       {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("b", "9Gi", inOtherNamespace)), reason: index.BoundElsewhere},
		"pre-bound to another":                 {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.ForClaim("other", ""))), reason: index.BoundElsewhere},
		"pre-bound, of other labels":           {claim: pvbuild.NewClaim("c", "1Gi", ssd), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Labelled("disk", "ssd")), pvbuild.NewPV("b", "9Gi", pvbuild.ForClaim("c", ""))), want: "b"},
		"pre-bound, but too small":             {claim: pvbuild.NewClaim("c", "2Gi"), volumes: pvs(pvbuild.NewPV("a", "3Gi"), pvbuild.NewPV("b", "1Gi", pvbuild.ForClaim("c", ""))), want: "a"},
		"pre-bound, but of other modes":        {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "3Gi"), pvbuild.NewPV("b", "1Gi", pvbuild.ForClaim("c", ""), pvbuild.WithModes(pvbuild.Rox))), want: "a"},
		"pre-bound, but a block device":        {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "3Gi"), pvbuild.NewPV("b", "1Gi", pvbuild.ForClaim("c", ""), pvbuild.OfMode(pvbuild.Block))), want: "a"},
		"pre-bound, other attributes":          {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "3Gi"), pvbuild.NewPV("b", "1Gi", pvbuild.ForClaim("c", ""), pvbuild.WithAttributes("x"))), want: "a"},
		"pre-bound, but being deleted":         {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "3Gi"), pvbuild.NewPV("b", "1Gi", pvbuild.ForClaim("c", ""), pvbuild.BeingDeleted)), want: "a"},
		"pre-bound, but elsewhere":             {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "3Gi"), pvbuild.NewPV("b", "1Gi", pvbuild.ForClaim("c", ""), pvbuild.OnHost("node2"))), reason: index.OtherNode},
		"pre-bound, too small and elsewhere":   {claim: pvbuild.NewClaim("c", "2Gi"), volumes: pvs(pvbuild.NewPV("a", "3Gi"), pvbuild.NewPV("b", "1Gi", pvbuild.ForClaim("c", ""), pvbuild.OnHost("node2"))), want: "a"},
		"pre-bound, released and named anew":   {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("b", "1Gi", pvbuild.ForClaim("c", ""), pvbuild.InPhase(v1.VolumeReleased))), want: "b"},
		"released, and its claim came again":   {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("b", "1Gi", pvbuild.ForClaim("c", "old"), pvbuild.InPhase(v1.VolumeReleased))), reason: index.BoundElsewhere},
		"pre-bound, failed for this very one":  {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("b", "1Gi", pvbuild.ForClaim("c", "uid-c"), pvbuild.InPhase(v1.VolumeFailed))), want: "b"},
		"two are pre-bound, the smaller":       {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "2Gi", pvbuild.ForClaim("c", "")), pvbuild.NewPV("b", "1Gi", pvbuild.ForClaim("c", ""))), want: "b"},
		"two are pre-bound, one is here":       {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.ForClaim("c", ""), pvbuild.OnHost("node2")), pvbuild.NewPV("b", "2Gi", pvbuild.ForClaim("c", ""))), want: "b"},
		"pre-bound, and named by another":      {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.ForClaim("c", ""))), others: []*v1.PersistentVolumeClaim{pvbuild.NewClaim("other", "1Gi", pvbuild.Naming("a"))}, want: "a"},
		"pre-bound, no source":                 {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.ForClaim("c", ""), pvbuild.WithoutSource)), reason: index.Invalid},
		"pre-bound by a claimRef without name": {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.ForClaim("", ""))), reason: index.BoundElsewhere},

		// By the claim's spec.volumeName.
		"named":                             {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("a", "1Gi"), pvbuild.NewPV("b", "9Gi")), want: "b"},
		"named, labels do not matter":       {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b"), ssd), volumes: pvs(pvbuild.NewPV("b", "9Gi")), want: "b"},
		"named, released, without claimRef": {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("b", "9Gi", pvbuild.InPhase(v1.VolumeReleased))), want: "b"},
		"named, of another class":           {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("b", "9Gi", pvbuild.Class("x"))), reason: index.OtherClass},
		"named, of the default class":       {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("b", "9Gi", pvbuild.Class("x"))), defaultClass: "x", want: "b"},
		"named, of another attributes":      {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("b", "9Gi", pvbuild.WithAttributes("x"))), reason: index.OtherAttributesClass},
		"named, too small":                  {claim: pvbuild.NewClaim("c", "2Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("a", "3Gi"), pvbuild.NewPV("b", "1Gi")), reason: index.TooSmall},
		"named, of other access modes":      {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("b", "1Gi", pvbuild.WithModes(pvbuild.Rox))), reason: index.OtherAccessModes},
		"named, a block device":             {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("b", "1Gi", pvbuild.OfMode(pvbuild.Block))), reason: index.OtherVolumeMode},
		"named, being deleted":              {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("b", "1Gi", pvbuild.BeingDeleted)), reason: index.NotAvailable},
		"named, on another node":            {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("b", "1Gi", pvbuild.OnHost("node2"))), reason: index.OtherNode},
		"named, without source":             {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("b", "1Gi", pvbuild.WithoutSource)), reason: index.Invalid},
		"named, and another's":              {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("b", "9Gi", pvbuild.ForClaim("other", ""))), reason: index.BoundElsewhere},
		"named, and an earlier claim's":     {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("b", "9Gi", pvbuild.ForClaim("c", "old"))), reason: index.BoundElsewhere},
		"named, by another as well":         {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("b", "9Gi")), others: []*v1.PersistentVolumeClaim{pvbuild.NewClaim("other", "1Gi", pvbuild.Naming("b"))}, want: "b"},
		"named, and not there":              {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("a", "9Gi"))},

		// By both.
		"each names the other":               {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("b", "9Gi", pvbuild.ForClaim("c", ""))), want: "b"},
		"each the other, whatever else":      {claim: pvbuild.NewClaim("c", "2Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("b", "1Gi", pvbuild.ForClaim("c", ""), pvbuild.Class("x"), pvbuild.WithModes(pvbuild.Rox), pvbuild.WithAttributes("y"))), want: "b"},
		"each the other, but a block device": {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("b", "1Gi", pvbuild.ForClaim("c", ""), pvbuild.OfMode(pvbuild.Block))), reason: index.OtherVolumeMode},
		"each the other, but elsewhere":      {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("b", "1Gi", pvbuild.ForClaim("c", "uid-c"), pvbuild.OnHost("node2"))), reason: index.OtherNode},
		"named, and another names the claim": {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("b")), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.ForClaim("c", "")), pvbuild.NewPV("b", "9Gi")), want: "b"},
	} {
		t.Run(name, tc.run)
	}
}

// What the API server would not have let in is no claim for any volume.
func TestInvalidClaims(t *testing.T) {
	for field, claim := range map[string]*v1.PersistentVolumeClaim{
		"spec.selector":                   pvbuild.NewClaim("c", "1Gi", pvbuild.Selecting("disk", "Near", "x")),
		"spec.resources.requests.storage": pvbuild.NewClaim("c", "-1Gi", pvbuild.Naming("a")),
	} {
		_, err := index.New(pvbuild.NewPV("a", "9Gi")).Match(index.Wanted{Claim: claim})
		unbound, ok := errors.AsType[*index.UnboundError](err)
		invalid, isInvalid := errors.AsType[*volume.InvalidSpecError](err)
		if !ok || !isInvalid || unbound.Claim.Name != "c" || invalid.Field != field || !strings.Contains(err.Error(), "ops/c") {
			t.Errorf("%s: err = %v", field, err)
		}
	}
	for _, requests := range []v1.ResourceList{nil, {v1.ResourceStorage: resource.MustParse("0")}} {
		claim := pvbuild.NewClaim("c", "1Gi")
		claim.Spec.Resources.Requests = requests
		if _, err := index.New(pvbuild.NewPV("a", "9Gi")).Match(index.Wanted{Claim: claim}); err == nil {
			t.Errorf("a claim that requests %v got a volume", requests)
		}
	}
}

// A volume may have more labels, and be on more nodes, than there are lists.
func TestMoreLabelsAndHostsThanLists(t *testing.T) {
	crowded := pvbuild.NewPV("a", "1Gi")
	crowded.Labels = make(map[string]string)
	var hosts []string
	for i := range 200 {
		name := fmt.Sprintf("x%d", i)
		crowded.Labels[name], hosts = "yes", append(hosts, name)
	}
	pvbuild.Affinity(pvbuild.Require(v1.LabelHostname, v1.NodeSelectorOpIn, hosts...))(crowded)
	few := pvbuild.NewPV("b", "2Gi", pvbuild.Labelled("x2", "yes"))
	x := index.New(crowded, few)
	for node, want := range map[string]string{"x3": "a", "elsewhere": "b"} {
		for _, claim := range []*v1.PersistentVolumeClaim{
			pvbuild.NewClaim("c", "1Gi"), pvbuild.NewClaim("c", "1Gi", pvbuild.SelectingPairs(map[string]string{"x2": "yes"})), pvbuild.NewClaim("c", "1Gi", pvbuild.Selecting("x2", metav1.LabelSelectorOpExists)),
		} {
			pv, err := x.Match(index.Wanted{Claim: claim, NodeName: node})
			if err != nil || pv.Name != want {
				t.Errorf("on %s: got %v, %v; want %s", node, pvbuild.VolumeName(pv), err, want)
			}
		}
	}
}
