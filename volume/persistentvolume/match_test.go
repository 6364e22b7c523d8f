package persistentvolume_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume"
)

type pvOption func(*v1.PersistentVolume)

func newPV(name, size string, options ...pvOption) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			Capacity:               v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)},
			AccessModes:            []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteMany},
			PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "s", Path: "/" + name}},
		},
	}
	for _, option := range options {
		option(pv)
	}
	return pv
}

func class(name string) pvOption {
	return func(pv *v1.PersistentVolume) { pv.Spec.StorageClassName = name }
}

func forClaim(name string, uid types.UID) pvOption {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ops", Name: name, UID: uid}
	}
}

func onHost(host string) pvOption {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{host}}},
		}}}}
	}
}

type claimOption func(*v1.PersistentVolumeClaim)

func newClaim(name, size string, options ...claimOption) *v1.PersistentVolumeClaim {
	c := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}},
		},
	}
	for _, option := range options {
		option(c)
	}
	return c
}

func ofClass(name string) claimOption {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

func naming(pv string) claimOption {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = pv }
}

func TestMatch(t *testing.T) {
	selecting := func(c *v1.PersistentVolumeClaim) {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "ssd"}}
	}
	labelled := func(pv *v1.PersistentVolume) { pv.Labels = map[string]string{"disk": "ssd"} }
	released := func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeReleased }
	block := func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock) }
	only := func(modes ...v1.PersistentVolumeAccessMode) pvOption {
		return func(pv *v1.PersistentVolume) { pv.Spec.AccessModes = modes }
	}
	beta := func(c *v1.PersistentVolumeClaim) {
		c.Annotations = map[string]string{"volume.beta.kubernetes.io/storage-class": "fast"}
	}
	const none = ""
	tests := map[string]struct {
		claim        *v1.PersistentVolumeClaim
		volumes      []*v1.PersistentVolume
		defaultClass string
		reserved     map[string]string
		want         string
		reason       persistentvolume.Reason
	}{
		"the smallest that fits":       {claim: newClaim("c", "5Gi"), volumes: []*v1.PersistentVolume{newPV("huge", "1Ti"), newPV("small", "1Gi"), newPV("fit", "6Gi"), newPV("big", "10Gi")}, want: "fit"},
		"exactly the size":             {claim: newClaim("c", "5Gi"), volumes: []*v1.PersistentVolume{newPV("a", "5Gi")}, want: "a"},
		"of equal ones the first name": {claim: newClaim("c", "1Gi"), volumes: []*v1.PersistentVolume{newPV("b", "1Gi"), newPV("a", "1024Mi")}, want: "a"},
		"too small":                    {claim: newClaim("c", "5Gi"), volumes: []*v1.PersistentVolume{newPV("a", "4Gi")}, reason: persistentvolume.TooSmall},
		"the class":                    {claim: newClaim("c", "1Gi", ofClass("fast")), volumes: []*v1.PersistentVolume{newPV("a", "1Gi"), newPV("b", "2Gi", class("fast"))}, want: "b"},
		"the class \"\"":               {claim: newClaim("c", "1Gi", ofClass("")), volumes: []*v1.PersistentVolume{newPV("a", "1Gi", class("fast")), newPV("b", "2Gi")}, defaultClass: "fast", want: "b"},
		"no class means the default":   {claim: newClaim("c", "1Gi"), volumes: []*v1.PersistentVolume{newPV("a", "1Gi"), newPV("b", "2Gi", class("fast"))}, defaultClass: "fast", want: "b"},
		"the class by annotation":      {claim: newClaim("c", "1Gi", beta), volumes: []*v1.PersistentVolume{newPV("a", "1Gi"), newPV("b", "2Gi", class("fast"))}, want: "b"},
		"another class":                {claim: newClaim("c", "1Gi", ofClass("fast")), volumes: []*v1.PersistentVolume{newPV("a", "1Gi")}, reason: persistentvolume.OtherClass},
		"access modes":                 {claim: newClaim("c", "1Gi"), volumes: []*v1.PersistentVolume{newPV("a", "1Gi", only(v1.ReadOnlyMany)), newPV("b", "2Gi", only(v1.ReadOnlyMany, v1.ReadWriteOnce))}, want: "b"},
		"other access modes":           {claim: newClaim("c", "1Gi"), volumes: []*v1.PersistentVolume{newPV("a", "1Gi", only(v1.ReadOnlyMany))}, reason: persistentvolume.OtherAccessModes},
		"volume mode":                  {claim: newClaim("c", "1Gi"), volumes: []*v1.PersistentVolume{newPV("a", "1Gi", block)}, reason: persistentvolume.OtherVolumeMode},
		"labels":                       {claim: newClaim("c", "1Gi", selecting), volumes: []*v1.PersistentVolume{newPV("a", "1Gi"), newPV("b", "2Gi", labelled)}, want: "b"},
		"other labels":                 {claim: newClaim("c", "1Gi", selecting), volumes: []*v1.PersistentVolume{newPV("a", "1Gi")}, reason: persistentvolume.OtherLabels},
		"this node":                    {claim: newClaim("c", "1Gi"), volumes: []*v1.PersistentVolume{newPV("a", "1Gi", onHost("node2")), newPV("b", "2Gi", onHost("node1"))}, want: "b"},
		"another node":                 {claim: newClaim("c", "1Gi"), volumes: []*v1.PersistentVolume{newPV("a", "1Gi", onHost("node2"))}, reason: persistentvolume.OtherNode},
		"pre-bound wins, of any class": {claim: newClaim("c", "1Gi"), volumes: []*v1.PersistentVolume{newPV("a", "1Gi"), newPV("b", "9Gi", class("x"), forClaim("c", ""))}, want: "b"},
		"pre-bound with this UID":      {claim: newClaim("c", "1Gi"), volumes: []*v1.PersistentVolume{newPV("b", "9Gi", forClaim("c", "uid-c"))}, want: "b"},
		"pre-bound to an earlier one":  {claim: newClaim("c", "1Gi"), volumes: []*v1.PersistentVolume{newPV("b", "9Gi", forClaim("c", "old"))}, reason: persistentvolume.BoundElsewhere},
		"pre-bound, but too small":     {claim: newClaim("c", "2Gi"), volumes: []*v1.PersistentVolume{newPV("a", "3Gi"), newPV("b", "1Gi", forClaim("c", ""))}, want: "a"},
		"bound to another":             {claim: newClaim("c", "1Gi"), volumes: []*v1.PersistentVolume{newPV("a", "1Gi", forClaim("other", ""))}, reason: persistentvolume.BoundElsewhere},
		"reserved":                     {claim: newClaim("c", "1Gi"), volumes: []*v1.PersistentVolume{newPV("a", "1Gi"), newPV("b", "2Gi")}, reserved: map[string]string{"a": "ops/other"}, want: "b"},
		"reserved though pre-bound":    {claim: newClaim("c", "1Gi"), volumes: []*v1.PersistentVolume{newPV("a", "1Gi", forClaim("c", ""))}, reserved: map[string]string{"a": "ops/other"}, reason: persistentvolume.BoundElsewhere},
		"named":                        {claim: newClaim("c", "1Gi", naming("b")), volumes: []*v1.PersistentVolume{newPV("a", "1Gi"), newPV("b", "9Gi")}, want: "b"},
		"named, labels do not matter":  {claim: newClaim("c", "1Gi", naming("b"), selecting), volumes: []*v1.PersistentVolume{newPV("b", "9Gi")}, want: "b"},
		"named, of another class":      {claim: newClaim("c", "1Gi", naming("b")), volumes: []*v1.PersistentVolume{newPV("b", "9Gi", class("x"))}, reason: persistentvolume.OtherClass},
		"named, and another's":         {claim: newClaim("c", "1Gi", naming("b")), volumes: []*v1.PersistentVolume{newPV("b", "9Gi", forClaim("other", ""))}, reason: persistentvolume.BoundElsewhere},
		"named, and not there":         {claim: newClaim("c", "1Gi", naming("b")), volumes: []*v1.PersistentVolume{newPV("a", "9Gi")}, want: none},
		"released":                     {claim: newClaim("c", "1Gi"), volumes: []*v1.PersistentVolume{newPV("a", "1Gi", released)}, reason: persistentvolume.NotAvailable},
		"there are none":               {claim: newClaim("c", "1Gi"), want: none},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				rand.Shuffle(len(tc.volumes), func(i, j int) { tc.volumes[i], tc.volumes[j] = tc.volumes[j], tc.volumes[i] })
				got, err := persistentvolume.Match(persistentvolume.Wanted{
					Claim: tc.claim, DefaultClass: tc.defaultClass, NodeName: "node1", Reserved: tc.reserved,
				}, tc.volumes)
				if tc.want != none {
					if err != nil || got.Name != tc.want {
						t.Fatalf("got %v, %v; want %s", got, err, tc.want)
					}
					continue
				}
				unbound, ok := errors.AsType[*persistentvolume.UnboundError](err)
				if !ok || !errors.Is(err, volume.ErrClaimUnbound) {
					t.Fatalf("got %v, %v", got, err)
				}
				if tc.reason != "" && (len(unbound.Rejected) != 1 || unbound.Rejected[0].Reason != tc.reason) {
					t.Fatalf("rejected for %+v, want %q", unbound.Rejected, tc.reason)
				}
			}
		})
	}
}

func TestUnboundErrorNamesEveryReason(t *testing.T) {
	_, err := persistentvolume.Match(persistentvolume.Wanted{Claim: newClaim("c", "5Gi", ofClass("fast")), NodeName: "node1"},
		[]*v1.PersistentVolume{newPV("a", "1Gi", class("fast")), newPV("b", "9Gi"), newPV("d", "2Gi", class("fast")),
			newPV("e", "3Gi", class("fast")), newPV("f", "4Gi", class("fast"))})
	const want = `bind PersistentVolumeClaim "ops/c": the claim is not bound: too small (a: 1Gi of 5Gi; d: 2Gi of 5Gi; e: 3Gi of 5Gi and 1 more), other storage class (b: class "")`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestDefaultClass(t *testing.T) {
	newClass := func(name, value string, minute int) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{
			Name: name, CreationTimestamp: metav1.Unix(int64(minute)*60, 0),
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": value},
		}}
	}
	for want, classes := range map[string][]*storagev1.StorageClass{
		"":      {newClass("a", "false", 0), {ObjectMeta: metav1.ObjectMeta{Name: "b"}}},
		"only":  {newClass("a", "false", 0), newClass("only", "true", 0)},
		"newer": {newClass("a", "true", 1), newClass("newer", "true", 2)},
		"first": {newClass("second", "true", 1), newClass("first", "true", 1)},
	} {
		if got := persistentvolume.DefaultClass(classes); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if !strings.Contains((&persistentvolume.UnboundError{Err: volume.ErrClaimUnbound}).Error(), "create one") {
		t.Error("without volumes, the message does not say what to do")
	}
}
