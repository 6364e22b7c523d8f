package persistentvolume_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// The rules for volumes and claims that name each other: FindMatchingVolume
// for claimRef, checkVolumeSatisfyClaim of the PersistentVolume controller for
// spec.volumeName.
func TestMatchChosen(t *testing.T) {
	ssd := selectingPairs(map[string]string{"disk": "ssd"})
	inOtherNamespace := func(pv *v1.PersistentVolume) {
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "dev", Name: "c"}
	}
	for name, tc := range map[string]matchCase{
		// By the volume's claimRef.
		"pre-bound wins, of any class":         {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi"), newPV("b", "9Gi", class("x"), forClaim("c", ""))), want: "b"},
		"pre-bound wins, with more modes":      {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", withModes(rwo)), newPV("b", "9Gi", forClaim("c", ""))), unplaced: true, want: "b"},
		"pre-bound with this UID":              {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("b", "9Gi", forClaim("c", "uid-c"))), want: "b"},
		"pre-bound to an earlier one":          {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("b", "9Gi", forClaim("c", "old"))), reason: persistentvolume.BoundElsewhere},
		"pre-bound in another namespace":       {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("b", "9Gi", inOtherNamespace)), reason: persistentvolume.BoundElsewhere},
		"pre-bound to another":                 {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", forClaim("other", ""))), reason: persistentvolume.BoundElsewhere},
		"pre-bound, of other labels":           {claim: newClaim("c", "1Gi", ssd), volumes: pvs(newPV("a", "1Gi", labelled("disk", "ssd")), newPV("b", "9Gi", forClaim("c", ""))), want: "b"},
		"pre-bound, but too small":             {claim: newClaim("c", "2Gi"), volumes: pvs(newPV("a", "3Gi"), newPV("b", "1Gi", forClaim("c", ""))), want: "a"},
		"pre-bound, but of other modes":        {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "3Gi"), newPV("b", "1Gi", forClaim("c", ""), withModes(rox))), want: "a"},
		"pre-bound, but a block device":        {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "3Gi"), newPV("b", "1Gi", forClaim("c", ""), ofMode(block))), want: "a"},
		"pre-bound, other attributes":          {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "3Gi"), newPV("b", "1Gi", forClaim("c", ""), withAttributes("x"))), want: "a"},
		"pre-bound, but being deleted":         {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "3Gi"), newPV("b", "1Gi", forClaim("c", ""), beingDeleted)), want: "a"},
		"pre-bound, but elsewhere":             {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "3Gi"), newPV("b", "1Gi", forClaim("c", ""), onHost("node2"))), reason: persistentvolume.OtherNode},
		"pre-bound, too small and elsewhere":   {claim: newClaim("c", "2Gi"), volumes: pvs(newPV("a", "3Gi"), newPV("b", "1Gi", forClaim("c", ""), onHost("node2"))), want: "a"},
		"pre-bound, released and named anew":   {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("b", "1Gi", forClaim("c", ""), inPhase(v1.VolumeReleased))), want: "b"},
		"released, and its claim came again":   {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("b", "1Gi", forClaim("c", "old"), inPhase(v1.VolumeReleased))), reason: persistentvolume.BoundElsewhere},
		"pre-bound, failed for this very one":  {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("b", "1Gi", forClaim("c", "uid-c"), inPhase(v1.VolumeFailed))), want: "b"},
		"two are pre-bound, the smaller":       {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "2Gi", forClaim("c", "")), newPV("b", "1Gi", forClaim("c", ""))), want: "b"},
		"two are pre-bound, one is here":       {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", forClaim("c", ""), onHost("node2")), newPV("b", "2Gi", forClaim("c", ""))), want: "b"},
		"pre-bound, and named by another":      {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", forClaim("c", ""))), others: []*v1.PersistentVolumeClaim{newClaim("other", "1Gi", naming("a"))}, want: "a"},
		"pre-bound, no source":                 {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", forClaim("c", ""), withoutSource)), reason: persistentvolume.Invalid},
		"pre-bound by a claimRef without name": {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", forClaim("", ""))), reason: persistentvolume.BoundElsewhere},

		// By the claim's spec.volumeName.
		"named":                             {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("a", "1Gi"), newPV("b", "9Gi")), want: "b"},
		"named, labels do not matter":       {claim: newClaim("c", "1Gi", naming("b"), ssd), volumes: pvs(newPV("b", "9Gi")), want: "b"},
		"named, released, without claimRef": {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("b", "9Gi", inPhase(v1.VolumeReleased))), want: "b"},
		"named, of another class":           {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("b", "9Gi", class("x"))), reason: persistentvolume.OtherClass},
		"named, of the default class":       {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("b", "9Gi", class("x"))), defaultClass: "x", want: "b"},
		"named, of another attributes":      {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("b", "9Gi", withAttributes("x"))), reason: persistentvolume.OtherAttributesClass},
		"named, too small":                  {claim: newClaim("c", "2Gi", naming("b")), volumes: pvs(newPV("a", "3Gi"), newPV("b", "1Gi")), reason: persistentvolume.TooSmall},
		"named, of other access modes":      {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("b", "1Gi", withModes(rox))), reason: persistentvolume.OtherAccessModes},
		"named, a block device":             {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("b", "1Gi", ofMode(block))), reason: persistentvolume.OtherVolumeMode},
		"named, being deleted":              {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("b", "1Gi", beingDeleted)), reason: persistentvolume.NotAvailable},
		"named, on another node":            {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("b", "1Gi", onHost("node2"))), reason: persistentvolume.OtherNode},
		"named, without source":             {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("b", "1Gi", withoutSource)), reason: persistentvolume.Invalid},
		"named, and another's":              {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("b", "9Gi", forClaim("other", ""))), reason: persistentvolume.BoundElsewhere},
		"named, and an earlier claim's":     {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("b", "9Gi", forClaim("c", "old"))), reason: persistentvolume.BoundElsewhere},
		"named, by another as well":         {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("b", "9Gi")), others: []*v1.PersistentVolumeClaim{newClaim("other", "1Gi", naming("b"))}, want: "b"},
		"named, and not there":              {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("a", "9Gi"))},

		// By both.
		"each names the other":               {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("b", "9Gi", forClaim("c", ""))), want: "b"},
		"each the other, whatever else":      {claim: newClaim("c", "2Gi", naming("b")), volumes: pvs(newPV("b", "1Gi", forClaim("c", ""), class("x"), withModes(rox), withAttributes("y"))), want: "b"},
		"each the other, but a block device": {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("b", "1Gi", forClaim("c", ""), ofMode(block))), reason: persistentvolume.OtherVolumeMode},
		"each the other, but elsewhere":      {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("b", "1Gi", forClaim("c", "uid-c"), onHost("node2"))), reason: persistentvolume.OtherNode},
		"named, and another names the claim": {claim: newClaim("c", "1Gi", naming("b")), volumes: pvs(newPV("a", "1Gi", forClaim("c", "")), newPV("b", "9Gi")), want: "b"},
	} {
		t.Run(name, tc.run)
	}
}

// What the API server would not have let in is no claim for any volume.
func TestInvalidClaims(t *testing.T) {
	for field, claim := range map[string]*v1.PersistentVolumeClaim{
		"spec.selector":                   newClaim("c", "1Gi", selecting("disk", "Near", "x")),
		"spec.resources.requests.storage": newClaim("c", "-1Gi", naming("a")),
	} {
		_, err := persistentvolume.NewIndex(newPV("a", "9Gi")).Match(persistentvolume.Wanted{Claim: claim})
		unbound, ok := errors.AsType[*persistentvolume.UnboundError](err)
		invalid, isInvalid := errors.AsType[*volume.InvalidSpecError](err)
		if !ok || !isInvalid || unbound.Claim.Name != "c" || invalid.Field != field || !strings.Contains(err.Error(), "ops/c") {
			t.Errorf("%s: err = %v", field, err)
		}
	}
	for _, requests := range []v1.ResourceList{nil, {v1.ResourceStorage: resource.MustParse("0")}} {
		claim := newClaim("c", "1Gi")
		claim.Spec.Resources.Requests = requests
		if _, err := persistentvolume.NewIndex(newPV("a", "9Gi")).Match(persistentvolume.Wanted{Claim: claim}); err == nil {
			t.Errorf("a claim that requests %v got a volume", requests)
		}
	}
}

// A volume may have more labels, and be on more nodes, than there are lists.
func TestMoreLabelsAndHostsThanLists(t *testing.T) {
	crowded := newPV("a", "1Gi")
	crowded.Labels = make(map[string]string)
	var hosts []string
	for i := range 200 {
		name := fmt.Sprintf("x%d", i)
		crowded.Labels[name], hosts = "yes", append(hosts, name)
	}
	affinity(require(v1.LabelHostname, v1.NodeSelectorOpIn, hosts...))(crowded)
	few := newPV("b", "2Gi", labelled("x2", "yes"))
	x := persistentvolume.NewIndex(crowded, few)
	for node, want := range map[string]string{"x3": "a", "elsewhere": "b"} {
		for _, claim := range []*v1.PersistentVolumeClaim{
			newClaim("c", "1Gi"), newClaim("c", "1Gi", selectingPairs(map[string]string{"x2": "yes"})), newClaim("c", "1Gi", selecting("x2", metav1.LabelSelectorOpExists)),
		} {
			pv, err := x.Match(persistentvolume.Wanted{Claim: claim, NodeName: node})
			if err != nil || pv.Name != want {
				t.Errorf("on %s: got %v, %v; want %s", node, nameOf(pv), err, want)
			}
		}
	}
}
