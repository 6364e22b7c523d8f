package claimbinding_test

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
)

func TestCheck(t *testing.T) {
	tests := map[string]struct {
		change func(*v1.PersistentVolumeClaim, *v1.PersistentVolume)
		want   error
	}{
		"bound":             {func(*v1.PersistentVolumeClaim, *v1.PersistentVolume) {}, nil},
		"names no volume":   {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) { c.Spec.VolumeName = "" }, claimbinding.ErrUnbound},
		"pending":           {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) { c.Status.Phase = v1.ClaimPending }, claimbinding.ErrUnbound},
		"lost":              {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) { c.Status.Phase = v1.ClaimLost }, claimbinding.ErrLost},
		"another volume":    {func(_ *v1.PersistentVolumeClaim, p *v1.PersistentVolume) { p.Name = "other" }, claimbinding.ErrElsewhere},
		"no claimRef":       {func(_ *v1.PersistentVolumeClaim, p *v1.PersistentVolume) { p.Spec.ClaimRef = nil }, claimbinding.ErrUnbound},
		"another claim":     {func(_ *v1.PersistentVolumeClaim, p *v1.PersistentVolume) { p.Spec.ClaimRef.Name = "x" }, claimbinding.ErrElsewhere},
		"another namespace": {func(_ *v1.PersistentVolumeClaim, p *v1.PersistentVolume) { p.Spec.ClaimRef.Namespace = "x" }, claimbinding.ErrElsewhere},
		"a claim re-created under its name": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			c.UID = "new"
		}, claimbinding.ErrElsewhere},
		"a claimRef without UID": {func(_ *v1.PersistentVolumeClaim, p *v1.PersistentVolume) { p.Spec.ClaimRef.UID = "" }, claimbinding.ErrElsewhere},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pvc := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "nfs-211", UID: "old"}}
			pvc.Spec.VolumeName = "nfs211"
			pvc.Status.Phase = v1.ClaimBound
			pv := boundPV()
			pv.Spec.ClaimRef.UID = "old"
			tc.change(pvc, pv)
			checkError(t, claimbinding.Check(pvc, pv), tc.want)
		})
	}
	t.Run("the volume is gone", func(t *testing.T) {
		pvc := &v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{VolumeName: "nfs211"}}
		pvc.Status.Phase = v1.ClaimBound
		checkError(t, claimbinding.Check(pvc, nil), claimbinding.ErrLost)
	})
}

func checkError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || volume.IsUncertain(err) {
		t.Fatalf("err = %v, want %v, marked as having done nothing", err, want)
	}
	if b, ok := errors.AsType[*claimbinding.Error](err); want != nil && (!ok || b.Detail == "") {
		t.Errorf("%v is no Error with a detail", err)
	}
}

func nodeSelector(requirements ...v1.NodeSelectorRequirement) *v1.NodeSelector {
	return &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: requirements}}}
}

func TestMatchesNode(t *testing.T) {
	need := func(key string, op v1.NodeSelectorOperator, values ...string) v1.NodeSelectorRequirement {
		return v1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
	}
	field := func(op v1.NodeSelectorOperator, values ...string) *v1.NodeSelector {
		return &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{need("metadata.name", op, values...)}}}}
	}
	tests := map[string]struct {
		selector *v1.NodeSelector
		want     bool
	}{
		"no affinity":                {nil, true},
		"no terms":                   {&v1.NodeSelector{}, false},
		"an empty term":              {nodeSelector(), false},
		"this host":                  {nodeSelector(need(v1.LabelHostname, v1.NodeSelectorOpIn, "node1", "node2")), true},
		"another host":               {nodeSelector(need(v1.LabelHostname, v1.NodeSelectorOpIn, "node2")), false},
		"not another host":           {nodeSelector(need(v1.LabelHostname, v1.NodeSelectorOpNotIn, "node2")), true},
		"two expressions, one fails": {nodeSelector(need("disk", v1.NodeSelectorOpExists), need("zone", v1.NodeSelectorOpExists)), false},
		"absent label":               {nodeSelector(need("zone", v1.NodeSelectorOpDoesNotExist)), true},
		"greater":                    {nodeSelector(need("slots", v1.NodeSelectorOpGt, "3")), true},
		"less":                       {nodeSelector(need("slots", v1.NodeSelectorOpLt, "3")), false},
		"by name":                    {field(v1.NodeSelectorOpIn, "node1"), true},
		"not by name":                {field(v1.NodeSelectorOpNotIn, "node1"), false},
		"the second of two terms":    {&v1.NodeSelector{NodeSelectorTerms: append(field(v1.NodeSelectorOpIn, "x").NodeSelectorTerms, nodeSelector(need("disk", v1.NodeSelectorOpIn, "ssd")).NodeSelectorTerms...)}, true},
		"neither of two terms":       {&v1.NodeSelector{NodeSelectorTerms: append(field(v1.NodeSelectorOpIn, "x").NodeSelectorTerms, nodeSelector(need("disk", v1.NodeSelectorOpIn, "tape")).NodeSelectorTerms...)}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pv := boundPV()
			if tc.selector != nil {
				pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: tc.selector}
			}
			got, err := claimbinding.MatchesNode(pv, map[string]string{"disk": "ssd", "slots": "4"}, "node1")
			if err != nil || got != tc.want {
				t.Errorf("matches = %v, err = %v; want %v", got, err, tc.want)
			}
		})
	}
	for name, bad := range map[string]*v1.NodeSelector{
		"operator":       nodeSelector(need("a", "Like", "b")),
		"no values":      nodeSelector(need("a", v1.NodeSelectorOpIn)),
		"unknown field":  {NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{need("spec.x", v1.NodeSelectorOpIn, "b")}}}},
		"field operator": field(v1.NodeSelectorOpExists),
	} {
		t.Run("invalid "+name, func(t *testing.T) {
			pv := boundPV()
			pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: bad}
			if _, err := claimbinding.MatchesNode(pv, nil, "node1"); err == nil || volume.IsUncertain(err) {
				t.Errorf("err = %v, want a refusal", err)
			} else if invalid, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || invalid.Reason == "" {
				t.Errorf("%v is no InvalidSpecError with a reason", err)
			}
		})
	}
}

func boundPV() *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "nfs211"},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "10.20.172.211", Path: "/nfs"}},
			ClaimRef:               &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "ops-test", Name: "nfs-211"},
		},
	}
}
