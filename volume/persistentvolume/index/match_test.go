package index_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// matchCase is one rule: of these volumes, the claim gets one, or none for a
// reason.
type matchCase struct {
	claim   *v1.PersistentVolumeClaim
	volumes []*v1.PersistentVolume
	want    string
	reason  index.Reason // where want is ""; empty for any

	defaultClass string
	labels       map[string]string // of the node
	unplaced     bool              // on no node; else on node1
	others       []*v1.PersistentVolumeClaim
}

func pvs(all ...*v1.PersistentVolume) []*v1.PersistentVolume { return all }

// run compares index, scan and what is wanted, whatever the order of volumes.
func (tc matchCase) run(t *testing.T) {
	w := index.Wanted{Claim: tc.claim, DefaultClass: tc.defaultClass, NodeName: "node1", NodeLabels: tc.labels}
	if tc.unplaced {
		w.NodeName = ""
	}
	for range 3 {
		rand.Shuffle(len(tc.volumes), func(i, j int) { tc.volumes[i], tc.volumes[j] = tc.volumes[j], tc.volumes[i] })
		x := index.New(tc.volumes...)
		for _, c := range tc.others {
			x.PutClaim(c)
		}
		got, err := x.Match(w)
		plain, _ := (&pvbuild.Scan{Volumes: tc.volumes, Claims: tc.others}).Match(w)
		if tc.want != "" {
			if err != nil || got.Name != tc.want || plain == nil || plain.Name != tc.want {
				t.Fatalf("got %v, %v, by scan %v; want %s", got, err, plain, tc.want)
			}
			continue
		}
		unbound, ok := errors.AsType[*index.UnboundError](err)
		if !ok || !errors.Is(err, claimbinding.ErrUnbound) || plain != nil {
			t.Fatalf("got %v, %v, by scan %v", got, err, plain)
		}
		if tc.reason != "" && !slices.ContainsFunc(unbound.Rejected, func(r index.Rejected) bool { return r.Reason == tc.reason }) {
			t.Fatalf("rejected for %+v, want %q", unbound.Rejected, tc.reason)
		}
		if len(tc.volumes) > 0 && tc.reason == "" && tc.claim.Spec.VolumeName == "" {
			t.Fatal("the case does not say for which reason")
		}
	}
}

// The rules for volumes that nobody has chosen, as the documentation has them
// (concepts/storage/persistent-volumes), and FindMatchingVolume of
// k8s.io/component-helpers.
func TestMatchFree(t *testing.T) {
	for name, tc := range map[string]matchCase{
		// Size.
		"the smallest that fits":           {claim: pvbuild.NewClaim("c", "5Gi"), volumes: pvs(pvbuild.NewPV("huge", "1Ti"), pvbuild.NewPV("small", "1Gi"), pvbuild.NewPV("fit", "6Gi"), pvbuild.NewPV("big", "10Gi")), want: "fit"},
		"exactly the size":                 {claim: pvbuild.NewClaim("c", "5Gi"), volumes: pvs(pvbuild.NewPV("a", "5Gi")), want: "a"},
		"one byte short":                   {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1073741823")), reason: index.TooSmall},
		"decimal and binary units":         {claim: pvbuild.NewClaim("c", "1G"), volumes: pvs(pvbuild.NewPV("a", "1Gi"), pvbuild.NewPV("b", "1G"), pvbuild.NewPV("c", "999M")), want: "b"},
		"a size that is no whole number":   {claim: pvbuild.NewClaim("c", "1500m"), volumes: pvs(pvbuild.NewPV("a", "1"), pvbuild.NewPV("b", "2"), pvbuild.NewPV("c", "1600m")), want: "c"},
		"a size beyond 64 bits":            {claim: pvbuild.NewClaim("c", "9223372036854775807"), volumes: pvs(pvbuild.NewPV("a", "1Ei"), pvbuild.NewPV("b", "1e30")), want: "b"},
		"of equal ones the first name":     {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("b", "1Gi"), pvbuild.NewPV("a", "1024Mi")), want: "a"},
		"too small":                        {claim: pvbuild.NewClaim("c", "5Gi"), volumes: pvs(pvbuild.NewPV("a", "4Gi")), reason: index.TooSmall},
		"larger than any":                  {claim: pvbuild.NewClaim("c", "1Pi"), volumes: pvs(pvbuild.NewPV("a", "4Gi"), pvbuild.NewPV("b", "1Ti")), reason: index.TooSmall},
		"there are none":                   {claim: pvbuild.NewClaim("c", "1Gi")},
		"a volume without capacity":        {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithoutCapacity)), reason: index.Invalid},
		"a volume of negative size":        {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "-1Gi")), reason: index.Invalid},
		"a volume without source":          {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithoutSource), pvbuild.NewPV("b", "2Gi")), want: "b"},
		"all volumes are without a source": {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithoutSource)), reason: index.Invalid},

		// Class.
		"the class":     {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("fast")), volumes: pvs(pvbuild.NewPV("a", "1Gi"), pvbuild.NewPV("b", "2Gi", pvbuild.Class("fast"))), want: "b"},
		"another class": {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("fast")), volumes: pvs(pvbuild.NewPV("a", "1Gi")), reason: index.OtherClass},
		"a class that does not exist still counts": {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("nix")), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Class("nix"))), want: "a"},
		"classes differ in case":                   {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("fast")), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Class("Fast"))), reason: index.OtherClass},
		"the class \"\"":                           {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("")), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Class("fast")), pvbuild.NewPV("b", "2Gi")), defaultClass: "fast", want: "b"},
		"the class \"\" and no such volume":        {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("")), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Class("fast"))), defaultClass: "fast", reason: index.OtherClass},
		"no class means the default":               {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi"), pvbuild.NewPV("b", "2Gi", pvbuild.Class("fast"))), defaultClass: "fast", want: "b"},
		"no class and no default means \"\"":       {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "2Gi"), pvbuild.NewPV("b", "1Gi", pvbuild.Class("fast"))), want: "a"},
		"a class wins over the default":            {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("slow")), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Class("fast")), pvbuild.NewPV("b", "2Gi", pvbuild.Class("slow"))), defaultClass: "fast", want: "b"},
		"the class by annotation":                  {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.WantsBetaClass("fast")), volumes: pvs(pvbuild.NewPV("a", "1Gi"), pvbuild.NewPV("b", "2Gi", pvbuild.Class("fast"))), want: "b"},
		"the annotation wins over the field":       {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("slow"), pvbuild.WantsBetaClass("fast")), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Class("slow")), pvbuild.NewPV("b", "2Gi", pvbuild.Class("fast"))), want: "b"},
		"an empty annotation is the class \"\"":    {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("slow"), pvbuild.WantsBetaClass("")), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Class("slow")), pvbuild.NewPV("b", "2Gi")), want: "b"},
		"a volume's class by annotation":           {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("fast")), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Class("fast"), pvbuild.BetaClassed("slow")), pvbuild.NewPV("b", "2Gi", pvbuild.BetaClassed("fast"))), want: "b"},

		// Volume attributes class.
		"the attributes class":                {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.WantsAttributes("gold")), volumes: pvs(pvbuild.NewPV("a", "1Gi"), pvbuild.NewPV("b", "2Gi", pvbuild.WithAttributes("gold"))), want: "b"},
		"another attributes class":            {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.WantsAttributes("gold")), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithAttributes("tin"))), reason: index.OtherAttributesClass},
		"an attributes class nobody asked of": {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithAttributes("gold"))), reason: index.OtherAttributesClass},
		"no attributes class is an empty one": {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.WantsAttributes("")), volumes: pvs(pvbuild.NewPV("a", "1Gi")), want: "a"},
		"an empty attributes class is none":   {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithAttributes(""))), want: "a"},

		// Access modes and volume mode.
		"access modes":                       {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithModes(pvbuild.Rox)), pvbuild.NewPV("b", "2Gi", pvbuild.WithModes(pvbuild.Rox, pvbuild.Rwo))), want: "b"},
		"other access modes":                 {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithModes(pvbuild.Rox))), reason: index.OtherAccessModes},
		"all of several access modes":        {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.WantsModes(pvbuild.Rwo, pvbuild.Rox)), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithModes(pvbuild.Rwo)), pvbuild.NewPV("b", "2Gi", pvbuild.WithModes(pvbuild.Rwx, pvbuild.Rox, pvbuild.Rwo))), want: "b"},
		"no volume has all access modes":     {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.WantsModes(pvbuild.Rwo, pvbuild.Rox)), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithModes(pvbuild.Rwo)), pvbuild.NewPV("b", "2Gi", pvbuild.WithModes(pvbuild.Rox))), reason: index.OtherAccessModes},
		"the order of access modes":          {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.WantsModes(pvbuild.Rwx, pvbuild.Rwo)), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithModes(pvbuild.Rwo, pvbuild.Rwx))), want: "a"},
		"many is not once":                   {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.WantsModes(pvbuild.Rwo)), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithModes(pvbuild.Rwx))), reason: index.OtherAccessModes},
		"one pod only":                       {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.WantsModes(pvbuild.Rwop)), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithModes(pvbuild.Rwo)), pvbuild.NewPV("b", "2Gi", pvbuild.WithModes(pvbuild.Rwop))), want: "b"},
		"one pod only is not one node":       {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.WantsModes(pvbuild.Rwo)), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithModes(pvbuild.Rwop))), reason: index.OtherAccessModes},
		"on a node, size before modes":       {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "9Gi", pvbuild.WithModes(pvbuild.Rwo)), pvbuild.NewPV("b", "2Gi", pvbuild.WithModes(pvbuild.Rwo, pvbuild.Rwx))), want: "b"},
		"on no node, modes before size":      {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "9Gi", pvbuild.WithModes(pvbuild.Rwo)), pvbuild.NewPV("b", "2Gi", pvbuild.WithModes(pvbuild.Rwo, pvbuild.Rwx))), unplaced: true, want: "a"},
		"on no node, size among equal modes": {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "9Gi", pvbuild.WithModes(pvbuild.Rwo, pvbuild.Rox)), pvbuild.NewPV("b", "2Gi", pvbuild.WithModes(pvbuild.Rwx, pvbuild.Rwo))), unplaced: true, want: "b"},
		"on no node, more modes if need be":  {claim: pvbuild.NewClaim("c", "5Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithModes(pvbuild.Rwo)), pvbuild.NewPV("b", "6Gi", pvbuild.WithModes(pvbuild.Rwo, pvbuild.Rwx))), unplaced: true, want: "b"},
		"a mode twice is one":                {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.WithModes(pvbuild.Rwo, pvbuild.Rwo)), pvbuild.NewPV("b", "2Gi", pvbuild.WithModes(pvbuild.Rwo))), unplaced: true, want: "a"},
		"volume mode":                        {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.OfMode(pvbuild.Block))), reason: index.OtherVolumeMode},
		"block wanted":                       {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.WantsMode(pvbuild.Block)), volumes: pvs(pvbuild.NewPV("a", "1Gi"), pvbuild.NewPV("b", "2Gi", pvbuild.OfMode(pvbuild.Block))), want: "b"},
		"block wanted and none there":        {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.WantsMode(pvbuild.Block)), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.OfMode(pvbuild.Dir))), reason: index.OtherVolumeMode},
		"no volume mode is a filesystem":     {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.WantsMode(pvbuild.Dir)), volumes: pvs(pvbuild.NewPV("a", "1Gi")), want: "a"},
		"a filesystem is no volume mode":     {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.OfMode(pvbuild.Dir))), want: "a"},

		// Selector.
		"labels":                      {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.SelectingPairs(map[string]string{"disk": "ssd"})), volumes: pvs(pvbuild.NewPV("a", "1Gi"), pvbuild.NewPV("b", "2Gi", pvbuild.Labelled("disk", "ssd"))), want: "b"},
		"other labels":                {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.SelectingPairs(map[string]string{"disk": "ssd"})), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Labelled("disk", "hdd"))), reason: index.OtherLabels},
		"all labels":                  {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.SelectingPairs(map[string]string{"disk": "ssd", "zone": "a"})), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Labelled("disk", "ssd")), pvbuild.NewPV("b", "2Gi", pvbuild.Labelled("zone", "a", "disk", "ssd"))), want: "b"},
		"an empty selector":           {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.SelectingPairs(nil)), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Labelled("disk", "ssd"))), want: "a"},
		"no selector":                 {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Labelled("disk", "ssd"))), want: "a"},
		"one of several values":       {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Selecting("disk", metav1.LabelSelectorOpIn, "nvme", "ssd")), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Labelled("disk", "hdd")), pvbuild.NewPV("b", "3Gi", pvbuild.Labelled("disk", "nvme")), pvbuild.NewPV("c", "2Gi", pvbuild.Labelled("disk", "ssd"))), want: "c"},
		"none of several values":      {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Selecting("disk", metav1.LabelSelectorOpNotIn, "hdd")), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Labelled("disk", "hdd")), pvbuild.NewPV("b", "2Gi")), want: "b"},
		"has the label":               {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Selecting("disk", metav1.LabelSelectorOpExists)), volumes: pvs(pvbuild.NewPV("a", "1Gi"), pvbuild.NewPV("b", "2Gi", pvbuild.Labelled("disk", ""))), want: "b"},
		"has not the label":           {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.Selecting("disk", metav1.LabelSelectorOpDoesNotExist)), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Labelled("disk", "ssd")), pvbuild.NewPV("b", "2Gi")), want: "b"},
		"an empty value":              {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.SelectingPairs(map[string]string{"disk": ""})), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Labelled("disk", "ssd")), pvbuild.NewPV("b", "2Gi", pvbuild.Labelled("disk", ""))), want: "b"},
		"a selector no volume can be": {claim: pvbuild.NewClaim("c", "1Gi", pvbuild.SelectingPairs(map[string]string{"disk": "ssd"}), pvbuild.Selecting("disk", metav1.LabelSelectorOpNotIn, "ssd")), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Labelled("disk", "ssd"))), reason: index.OtherLabels},
		"labels, and too small":       {claim: pvbuild.NewClaim("c", "2Gi", pvbuild.SelectingPairs(map[string]string{"disk": "ssd"})), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Labelled("disk", "ssd")), pvbuild.NewPV("b", "3Gi")), reason: index.TooSmall},

		// Node affinity.
		"this node":                         {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.OnHost("node2")), pvbuild.NewPV("b", "2Gi", pvbuild.OnHost("node1"))), want: "b"},
		"another node":                      {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.OnHost("node2"))), reason: index.OtherNode},
		"on no node, affinity is left out":  {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.OnHost("node2"))), unplaced: true, want: "a"},
		"a host name that is not the name":  {claim: pvbuild.NewClaim("c", "1Gi"), labels: map[string]string{v1.LabelHostname: "host-1"}, volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.OnHost("node1")), pvbuild.NewPV("b", "2Gi", pvbuild.OnHost("host-1"))), want: "b"},
		"one of several hosts":              {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Affinity(pvbuild.Require(v1.LabelHostname, v1.NodeSelectorOpIn, "node3", "node1")))), want: "a"},
		"a zone":                            {claim: pvbuild.NewClaim("c", "1Gi"), labels: map[string]string{"zone": "a"}, volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Affinity(pvbuild.Require("zone", v1.NodeSelectorOpIn, "b"))), pvbuild.NewPV("b", "2Gi", pvbuild.Affinity(pvbuild.Require("zone", v1.NodeSelectorOpIn, "a")))), want: "b"},
		"a zone, and the node has none":     {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Affinity(pvbuild.Require("zone", v1.NodeSelectorOpIn, "a")))), reason: index.OtherNode},
		"zone and host":                     {claim: pvbuild.NewClaim("c", "1Gi"), labels: map[string]string{"zone": "a"}, volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Affinity(pvbuild.Require("zone", v1.NodeSelectorOpIn, "b"), pvbuild.Require(v1.LabelHostname, v1.NodeSelectorOpIn, "node1")))), reason: index.OtherNode},
		"either of two terms":               {claim: pvbuild.NewClaim("c", "1Gi"), labels: map[string]string{"zone": "a"}, volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Affinity(pvbuild.Require("zone", v1.NodeSelectorOpIn, "b")), onHostToo("node1"))), want: "a"},
		"not that host":                     {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Affinity(pvbuild.Require(v1.LabelHostname, v1.NodeSelectorOpNotIn, "node1"))), pvbuild.NewPV("b", "2Gi", pvbuild.Affinity(pvbuild.Require(v1.LabelHostname, v1.NodeSelectorOpNotIn, "node2")))), want: "b"},
		"a label that the node must have":   {claim: pvbuild.NewClaim("c", "1Gi"), labels: map[string]string{"gpu": ""}, volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Affinity(pvbuild.Require("gpu", v1.NodeSelectorOpExists)))), want: "a"},
		"a label that it must not have":     {claim: pvbuild.NewClaim("c", "1Gi"), labels: map[string]string{"gpu": ""}, volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Affinity(pvbuild.Require("gpu", v1.NodeSelectorOpDoesNotExist)))), reason: index.OtherNode},
		"more than a number":                {claim: pvbuild.NewClaim("c", "1Gi"), labels: map[string]string{"rack": "7"}, volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Affinity(pvbuild.Require("rack", v1.NodeSelectorOpGt, "7"))), pvbuild.NewPV("b", "2Gi", pvbuild.Affinity(pvbuild.Require("rack", v1.NodeSelectorOpGt, "6")))), want: "b"},
		"the node's name":                   {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.NameAffinity(v1.NodeSelectorOpIn, "node2")), pvbuild.NewPV("b", "2Gi", pvbuild.NameAffinity(v1.NodeSelectorOpIn, "node1"))), want: "b"},
		"not the node's name":               {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.NameAffinity(v1.NodeSelectorOpNotIn, "node1"))), reason: index.OtherNode},
		"an affinity without terms":         {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", withoutTerms)), reason: index.OtherNode},
		"a term without expressions":        {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Affinity())), reason: index.OtherNode},
		"an operator that there is not":     {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.Affinity(pvbuild.Require("x", "Near", "y")))), reason: index.OtherNode},
		"anywhere, and here, by size":       {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "2Gi"), pvbuild.NewPV("b", "1Gi", pvbuild.OnHost("node1"))), want: "b"},
		"here, with the label, of the size": {claim: pvbuild.NewClaim("c", "2Gi", pvbuild.SelectingPairs(map[string]string{"disk": "ssd"})), volumes: pvs(pvbuild.NewPV("a", "3Gi", pvbuild.OnHost("node1")), pvbuild.NewPV("b", "4Gi", pvbuild.OnHost("node2"), pvbuild.Labelled("disk", "ssd")), pvbuild.NewPV("c", "1Gi", pvbuild.OnHost("node1"), pvbuild.Labelled("disk", "ssd")), pvbuild.NewPV("d", "5Gi", pvbuild.OnHost("node1"), pvbuild.Labelled("disk", "ssd"))), want: "d"},

		// State.
		"available":                      {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.InPhase(v1.VolumeAvailable))), want: "a"},
		"never marked as available":      {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.InPhase(v1.VolumePending))), want: "a"},
		"released":                       {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.InPhase(v1.VolumeReleased))), reason: index.NotAvailable},
		"failed":                         {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.InPhase(v1.VolumeFailed))), reason: index.NotAvailable},
		"being deleted":                  {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.BeingDeleted), pvbuild.NewPV("b", "2Gi")), want: "b"},
		"all are being deleted":          {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.BeingDeleted)), reason: index.NotAvailable},
		"its claimRef was taken away":    {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi", pvbuild.InPhase(v1.VolumeBound))), want: "a"},
		"named by another claim":         {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi"), pvbuild.NewPV("b", "2Gi")), others: []*v1.PersistentVolumeClaim{pvbuild.NewClaim("other", "1Gi", pvbuild.Naming("a"))}, want: "b"},
		"all are named by another claim": {claim: pvbuild.NewClaim("c", "1Gi"), volumes: pvs(pvbuild.NewPV("a", "1Gi")), others: []*v1.PersistentVolumeClaim{pvbuild.NewClaim("other", "1Gi", pvbuild.Naming("a"))}, reason: index.BoundElsewhere},
	} {
		t.Run(name, tc.run)
	}
}

func onHostToo(host string) pvbuild.Option {
	return pvbuild.Affinity(pvbuild.Require(v1.LabelHostname, v1.NodeSelectorOpIn, host))
}

func withoutTerms(pv *v1.PersistentVolume) {
	pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: new(v1.NodeSelector)}
}
