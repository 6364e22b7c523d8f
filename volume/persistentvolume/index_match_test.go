package persistentvolume_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// matchCase is one rule: of these volumes, the claim gets one, or none for a
// reason.
type matchCase struct {
	claim   *v1.PersistentVolumeClaim
	volumes []*v1.PersistentVolume
	want    string
	reason  persistentvolume.Reason // where want is ""; empty for any

	defaultClass string
	labels       map[string]string // of the node
	unplaced     bool              // on no node; else on node1
	others       []*v1.PersistentVolumeClaim
}

func pvs(all ...*v1.PersistentVolume) []*v1.PersistentVolume { return all }

// run compares index, scan and what is wanted, whatever the order of volumes.
func (tc matchCase) run(t *testing.T) {
	w := persistentvolume.Wanted{Claim: tc.claim, DefaultClass: tc.defaultClass, NodeName: "node1", NodeLabels: tc.labels}
	if tc.unplaced {
		w.NodeName = ""
	}
	for range 3 {
		rand.Shuffle(len(tc.volumes), func(i, j int) { tc.volumes[i], tc.volumes[j] = tc.volumes[j], tc.volumes[i] })
		x := persistentvolume.NewIndex(tc.volumes...)
		for _, c := range tc.others {
			x.PutClaim(c)
		}
		got, err := x.Match(w)
		plain, _ := (&scan{volumes: tc.volumes, claims: tc.others}).match(w)
		if tc.want != "" {
			if err != nil || got.Name != tc.want || plain == nil || plain.Name != tc.want {
				t.Fatalf("got %v, %v, by scan %v; want %s", got, err, plain, tc.want)
			}
			continue
		}
		unbound, ok := errors.AsType[*persistentvolume.UnboundError](err)
		if !ok || !errors.Is(err, volume.ErrClaimUnbound) || plain != nil {
			t.Fatalf("got %v, %v, by scan %v", got, err, plain)
		}
		if tc.reason != "" && !slices.ContainsFunc(unbound.Rejected, func(r persistentvolume.Rejected) bool { return r.Reason == tc.reason }) {
			t.Fatalf("rejected for %+v, want %q", unbound.Rejected, tc.reason)
		}
		if len(tc.volumes) > 0 && tc.reason == "" && tc.claim.Spec.VolumeName == "" {
			t.Fatal("the case does not say for which reason")
		}
	}
}

var (
	rwo, rwx   = v1.ReadWriteOnce, v1.ReadWriteMany
	rox, rwop  = v1.ReadOnlyMany, v1.ReadWriteOncePod
	block, dir = v1.PersistentVolumeBlock, v1.PersistentVolumeFilesystem
)

// The rules for volumes that nobody has chosen, as the documentation has them
// (concepts/storage/persistent-volumes), and FindMatchingVolume of
// k8s.io/component-helpers.
func TestMatchFree(t *testing.T) {
	for name, tc := range map[string]matchCase{
		// Size.
		"the smallest that fits":           {claim: newClaim("c", "5Gi"), volumes: pvs(newPV("huge", "1Ti"), newPV("small", "1Gi"), newPV("fit", "6Gi"), newPV("big", "10Gi")), want: "fit"},
		"exactly the size":                 {claim: newClaim("c", "5Gi"), volumes: pvs(newPV("a", "5Gi")), want: "a"},
		"one byte short":                   {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1073741823")), reason: persistentvolume.TooSmall},
		"decimal and binary units":         {claim: newClaim("c", "1G"), volumes: pvs(newPV("a", "1Gi"), newPV("b", "1G"), newPV("c", "999M")), want: "b"},
		"a size that is no whole number":   {claim: newClaim("c", "1500m"), volumes: pvs(newPV("a", "1"), newPV("b", "2"), newPV("c", "1600m")), want: "c"},
		"a size beyond 64 bits":            {claim: newClaim("c", "9223372036854775807"), volumes: pvs(newPV("a", "1Ei"), newPV("b", "1e30")), want: "b"},
		"of equal ones the first name":     {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("b", "1Gi"), newPV("a", "1024Mi")), want: "a"},
		"too small":                        {claim: newClaim("c", "5Gi"), volumes: pvs(newPV("a", "4Gi")), reason: persistentvolume.TooSmall},
		"larger than any":                  {claim: newClaim("c", "1Pi"), volumes: pvs(newPV("a", "4Gi"), newPV("b", "1Ti")), reason: persistentvolume.TooSmall},
		"there are none":                   {claim: newClaim("c", "1Gi")},
		"a volume without capacity":        {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", withoutCapacity)), reason: persistentvolume.Invalid},
		"a volume of negative size":        {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "-1Gi")), reason: persistentvolume.Invalid},
		"a volume without source":          {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", withoutSource), newPV("b", "2Gi")), want: "b"},
		"all volumes are without a source": {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", withoutSource)), reason: persistentvolume.Invalid},

		// Class.
		"the class":     {claim: newClaim("c", "1Gi", ofClass("fast")), volumes: pvs(newPV("a", "1Gi"), newPV("b", "2Gi", class("fast"))), want: "b"},
		"another class": {claim: newClaim("c", "1Gi", ofClass("fast")), volumes: pvs(newPV("a", "1Gi")), reason: persistentvolume.OtherClass},
		"a class that does not exist still counts": {claim: newClaim("c", "1Gi", ofClass("nix")), volumes: pvs(newPV("a", "1Gi", class("nix"))), want: "a"},
		"classes differ in case":                   {claim: newClaim("c", "1Gi", ofClass("fast")), volumes: pvs(newPV("a", "1Gi", class("Fast"))), reason: persistentvolume.OtherClass},
		"the class \"\"":                           {claim: newClaim("c", "1Gi", ofClass("")), volumes: pvs(newPV("a", "1Gi", class("fast")), newPV("b", "2Gi")), defaultClass: "fast", want: "b"},
		"the class \"\" and no such volume":        {claim: newClaim("c", "1Gi", ofClass("")), volumes: pvs(newPV("a", "1Gi", class("fast"))), defaultClass: "fast", reason: persistentvolume.OtherClass},
		"no class means the default":               {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi"), newPV("b", "2Gi", class("fast"))), defaultClass: "fast", want: "b"},
		"no class and no default means \"\"":       {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "2Gi"), newPV("b", "1Gi", class("fast"))), want: "a"},
		"a class wins over the default":            {claim: newClaim("c", "1Gi", ofClass("slow")), volumes: pvs(newPV("a", "1Gi", class("fast")), newPV("b", "2Gi", class("slow"))), defaultClass: "fast", want: "b"},
		"the class by annotation":                  {claim: newClaim("c", "1Gi", wantsBetaClass("fast")), volumes: pvs(newPV("a", "1Gi"), newPV("b", "2Gi", class("fast"))), want: "b"},
		"the annotation wins over the field":       {claim: newClaim("c", "1Gi", ofClass("slow"), wantsBetaClass("fast")), volumes: pvs(newPV("a", "1Gi", class("slow")), newPV("b", "2Gi", class("fast"))), want: "b"},
		"an empty annotation is the class \"\"":    {claim: newClaim("c", "1Gi", ofClass("slow"), wantsBetaClass("")), volumes: pvs(newPV("a", "1Gi", class("slow")), newPV("b", "2Gi")), want: "b"},
		"a volume's class by annotation":           {claim: newClaim("c", "1Gi", ofClass("fast")), volumes: pvs(newPV("a", "1Gi", class("fast"), betaClassed("slow")), newPV("b", "2Gi", betaClassed("fast"))), want: "b"},

		// Volume attributes class.
		"the attributes class":                {claim: newClaim("c", "1Gi", wantsAttributes("gold")), volumes: pvs(newPV("a", "1Gi"), newPV("b", "2Gi", withAttributes("gold"))), want: "b"},
		"another attributes class":            {claim: newClaim("c", "1Gi", wantsAttributes("gold")), volumes: pvs(newPV("a", "1Gi", withAttributes("tin"))), reason: persistentvolume.OtherAttributesClass},
		"an attributes class nobody asked of": {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", withAttributes("gold"))), reason: persistentvolume.OtherAttributesClass},
		"no attributes class is an empty one": {claim: newClaim("c", "1Gi", wantsAttributes("")), volumes: pvs(newPV("a", "1Gi")), want: "a"},
		"an empty attributes class is none":   {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", withAttributes(""))), want: "a"},

		// Access modes and volume mode.
		"access modes":                       {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", withModes(rox)), newPV("b", "2Gi", withModes(rox, rwo))), want: "b"},
		"other access modes":                 {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", withModes(rox))), reason: persistentvolume.OtherAccessModes},
		"all of several access modes":        {claim: newClaim("c", "1Gi", wantsModes(rwo, rox)), volumes: pvs(newPV("a", "1Gi", withModes(rwo)), newPV("b", "2Gi", withModes(rwx, rox, rwo))), want: "b"},
		"no volume has all access modes":     {claim: newClaim("c", "1Gi", wantsModes(rwo, rox)), volumes: pvs(newPV("a", "1Gi", withModes(rwo)), newPV("b", "2Gi", withModes(rox))), reason: persistentvolume.OtherAccessModes},
		"the order of access modes":          {claim: newClaim("c", "1Gi", wantsModes(rwx, rwo)), volumes: pvs(newPV("a", "1Gi", withModes(rwo, rwx))), want: "a"},
		"many is not once":                   {claim: newClaim("c", "1Gi", wantsModes(rwo)), volumes: pvs(newPV("a", "1Gi", withModes(rwx))), reason: persistentvolume.OtherAccessModes},
		"one pod only":                       {claim: newClaim("c", "1Gi", wantsModes(rwop)), volumes: pvs(newPV("a", "1Gi", withModes(rwo)), newPV("b", "2Gi", withModes(rwop))), want: "b"},
		"one pod only is not one node":       {claim: newClaim("c", "1Gi", wantsModes(rwo)), volumes: pvs(newPV("a", "1Gi", withModes(rwop))), reason: persistentvolume.OtherAccessModes},
		"on a node, size before modes":       {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "9Gi", withModes(rwo)), newPV("b", "2Gi", withModes(rwo, rwx))), want: "b"},
		"on no node, modes before size":      {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "9Gi", withModes(rwo)), newPV("b", "2Gi", withModes(rwo, rwx))), unplaced: true, want: "a"},
		"on no node, size among equal modes": {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "9Gi", withModes(rwo, rox)), newPV("b", "2Gi", withModes(rwx, rwo))), unplaced: true, want: "b"},
		"on no node, more modes if need be":  {claim: newClaim("c", "5Gi"), volumes: pvs(newPV("a", "1Gi", withModes(rwo)), newPV("b", "6Gi", withModes(rwo, rwx))), unplaced: true, want: "b"},
		"a mode twice is one":                {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", withModes(rwo, rwo)), newPV("b", "2Gi", withModes(rwo))), unplaced: true, want: "a"},
		"volume mode":                        {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", ofMode(block))), reason: persistentvolume.OtherVolumeMode},
		"block wanted":                       {claim: newClaim("c", "1Gi", wantsMode(block)), volumes: pvs(newPV("a", "1Gi"), newPV("b", "2Gi", ofMode(block))), want: "b"},
		"block wanted and none there":        {claim: newClaim("c", "1Gi", wantsMode(block)), volumes: pvs(newPV("a", "1Gi", ofMode(dir))), reason: persistentvolume.OtherVolumeMode},
		"no volume mode is a filesystem":     {claim: newClaim("c", "1Gi", wantsMode(dir)), volumes: pvs(newPV("a", "1Gi")), want: "a"},
		"a filesystem is no volume mode":     {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", ofMode(dir))), want: "a"},

		// Selector.
		"labels":                      {claim: newClaim("c", "1Gi", selectingPairs(map[string]string{"disk": "ssd"})), volumes: pvs(newPV("a", "1Gi"), newPV("b", "2Gi", labelled("disk", "ssd"))), want: "b"},
		"other labels":                {claim: newClaim("c", "1Gi", selectingPairs(map[string]string{"disk": "ssd"})), volumes: pvs(newPV("a", "1Gi", labelled("disk", "hdd"))), reason: persistentvolume.OtherLabels},
		"all labels":                  {claim: newClaim("c", "1Gi", selectingPairs(map[string]string{"disk": "ssd", "zone": "a"})), volumes: pvs(newPV("a", "1Gi", labelled("disk", "ssd")), newPV("b", "2Gi", labelled("zone", "a", "disk", "ssd"))), want: "b"},
		"an empty selector":           {claim: newClaim("c", "1Gi", selectingPairs(nil)), volumes: pvs(newPV("a", "1Gi", labelled("disk", "ssd"))), want: "a"},
		"no selector":                 {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", labelled("disk", "ssd"))), want: "a"},
		"one of several values":       {claim: newClaim("c", "1Gi", selecting("disk", metav1.LabelSelectorOpIn, "nvme", "ssd")), volumes: pvs(newPV("a", "1Gi", labelled("disk", "hdd")), newPV("b", "3Gi", labelled("disk", "nvme")), newPV("c", "2Gi", labelled("disk", "ssd"))), want: "c"},
		"none of several values":      {claim: newClaim("c", "1Gi", selecting("disk", metav1.LabelSelectorOpNotIn, "hdd")), volumes: pvs(newPV("a", "1Gi", labelled("disk", "hdd")), newPV("b", "2Gi")), want: "b"},
		"has the label":               {claim: newClaim("c", "1Gi", selecting("disk", metav1.LabelSelectorOpExists)), volumes: pvs(newPV("a", "1Gi"), newPV("b", "2Gi", labelled("disk", ""))), want: "b"},
		"has not the label":           {claim: newClaim("c", "1Gi", selecting("disk", metav1.LabelSelectorOpDoesNotExist)), volumes: pvs(newPV("a", "1Gi", labelled("disk", "ssd")), newPV("b", "2Gi")), want: "b"},
		"an empty value":              {claim: newClaim("c", "1Gi", selectingPairs(map[string]string{"disk": ""})), volumes: pvs(newPV("a", "1Gi", labelled("disk", "ssd")), newPV("b", "2Gi", labelled("disk", ""))), want: "b"},
		"a selector no volume can be": {claim: newClaim("c", "1Gi", selectingPairs(map[string]string{"disk": "ssd"}), selecting("disk", metav1.LabelSelectorOpNotIn, "ssd")), volumes: pvs(newPV("a", "1Gi", labelled("disk", "ssd"))), reason: persistentvolume.OtherLabels},
		"labels, and too small":       {claim: newClaim("c", "2Gi", selectingPairs(map[string]string{"disk": "ssd"})), volumes: pvs(newPV("a", "1Gi", labelled("disk", "ssd")), newPV("b", "3Gi")), reason: persistentvolume.TooSmall},

		// Node affinity.
		"this node":                         {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", onHost("node2")), newPV("b", "2Gi", onHost("node1"))), want: "b"},
		"another node":                      {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", onHost("node2"))), reason: persistentvolume.OtherNode},
		"on no node, affinity is left out":  {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", onHost("node2"))), unplaced: true, want: "a"},
		"a host name that is not the name":  {claim: newClaim("c", "1Gi"), labels: map[string]string{v1.LabelHostname: "host-1"}, volumes: pvs(newPV("a", "1Gi", onHost("node1")), newPV("b", "2Gi", onHost("host-1"))), want: "b"},
		"one of several hosts":              {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", affinity(require(v1.LabelHostname, v1.NodeSelectorOpIn, "node3", "node1")))), want: "a"},
		"a zone":                            {claim: newClaim("c", "1Gi"), labels: map[string]string{"zone": "a"}, volumes: pvs(newPV("a", "1Gi", affinity(require("zone", v1.NodeSelectorOpIn, "b"))), newPV("b", "2Gi", affinity(require("zone", v1.NodeSelectorOpIn, "a")))), want: "b"},
		"a zone, and the node has none":     {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", affinity(require("zone", v1.NodeSelectorOpIn, "a")))), reason: persistentvolume.OtherNode},
		"zone and host":                     {claim: newClaim("c", "1Gi"), labels: map[string]string{"zone": "a"}, volumes: pvs(newPV("a", "1Gi", affinity(require("zone", v1.NodeSelectorOpIn, "b"), require(v1.LabelHostname, v1.NodeSelectorOpIn, "node1")))), reason: persistentvolume.OtherNode},
		"either of two terms":               {claim: newClaim("c", "1Gi"), labels: map[string]string{"zone": "a"}, volumes: pvs(newPV("a", "1Gi", affinity(require("zone", v1.NodeSelectorOpIn, "b")), onHostToo("node1"))), want: "a"},
		"not that host":                     {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", affinity(require(v1.LabelHostname, v1.NodeSelectorOpNotIn, "node1"))), newPV("b", "2Gi", affinity(require(v1.LabelHostname, v1.NodeSelectorOpNotIn, "node2")))), want: "b"},
		"a label that the node must have":   {claim: newClaim("c", "1Gi"), labels: map[string]string{"gpu": ""}, volumes: pvs(newPV("a", "1Gi", affinity(require("gpu", v1.NodeSelectorOpExists)))), want: "a"},
		"a label that it must not have":     {claim: newClaim("c", "1Gi"), labels: map[string]string{"gpu": ""}, volumes: pvs(newPV("a", "1Gi", affinity(require("gpu", v1.NodeSelectorOpDoesNotExist)))), reason: persistentvolume.OtherNode},
		"more than a number":                {claim: newClaim("c", "1Gi"), labels: map[string]string{"rack": "7"}, volumes: pvs(newPV("a", "1Gi", affinity(require("rack", v1.NodeSelectorOpGt, "7"))), newPV("b", "2Gi", affinity(require("rack", v1.NodeSelectorOpGt, "6")))), want: "b"},
		"the node's name":                   {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", nameAffinity(v1.NodeSelectorOpIn, "node2")), newPV("b", "2Gi", nameAffinity(v1.NodeSelectorOpIn, "node1"))), want: "b"},
		"not the node's name":               {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", nameAffinity(v1.NodeSelectorOpNotIn, "node1"))), reason: persistentvolume.OtherNode},
		"an affinity without terms":         {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", withoutTerms)), reason: persistentvolume.OtherNode},
		"a term without expressions":        {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", affinity())), reason: persistentvolume.OtherNode},
		"an operator that there is not":     {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", affinity(require("x", "Near", "y")))), reason: persistentvolume.OtherNode},
		"anywhere, and here, by size":       {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "2Gi"), newPV("b", "1Gi", onHost("node1"))), want: "b"},
		"here, with the label, of the size": {claim: newClaim("c", "2Gi", selectingPairs(map[string]string{"disk": "ssd"})), volumes: pvs(newPV("a", "3Gi", onHost("node1")), newPV("b", "4Gi", onHost("node2"), labelled("disk", "ssd")), newPV("c", "1Gi", onHost("node1"), labelled("disk", "ssd")), newPV("d", "5Gi", onHost("node1"), labelled("disk", "ssd"))), want: "d"},

		// State.
		"available":                      {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", inPhase(v1.VolumeAvailable))), want: "a"},
		"never marked as available":      {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", inPhase(v1.VolumePending))), want: "a"},
		"released":                       {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", inPhase(v1.VolumeReleased))), reason: persistentvolume.NotAvailable},
		"failed":                         {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", inPhase(v1.VolumeFailed))), reason: persistentvolume.NotAvailable},
		"being deleted":                  {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", beingDeleted), newPV("b", "2Gi")), want: "b"},
		"all are being deleted":          {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", beingDeleted)), reason: persistentvolume.NotAvailable},
		"its claimRef was taken away":    {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi", inPhase(v1.VolumeBound))), want: "a"},
		"named by another claim":         {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi"), newPV("b", "2Gi")), others: []*v1.PersistentVolumeClaim{newClaim("other", "1Gi", naming("a"))}, want: "b"},
		"all are named by another claim": {claim: newClaim("c", "1Gi"), volumes: pvs(newPV("a", "1Gi")), others: []*v1.PersistentVolumeClaim{newClaim("other", "1Gi", naming("a"))}, reason: persistentvolume.BoundElsewhere},
	} {
		t.Run(name, tc.run)
	}
}

func onHostToo(host string) pvOption {
	return affinity(require(v1.LabelHostname, v1.NodeSelectorOpIn, host))
}

func withoutTerms(pv *v1.PersistentVolume) {
	pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: new(v1.NodeSelector)}
}
