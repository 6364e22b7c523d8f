package persistentvolume_test

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

func storeOf(t testing.TB, all ...metav1.Object) *objects.Store {
	t.Helper()
	s := objects.NewStore()
	for _, o := range all {
		if _, err := s.Create(context.Background(), o); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func claimRef(name string) volume.ObjectRef {
	return volume.NewObjectRef("PersistentVolumeClaim", "ops", name)
}

func getClaim(t testing.TB, s objects.Source, name string) *v1.PersistentVolumeClaim {
	t.Helper()
	c, err := objects.Get[*v1.PersistentVolumeClaim](context.Background(), s, claimRef(name))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func getPV(t testing.TB, s objects.Source, name string) *v1.PersistentVolume {
	t.Helper()
	pv, err := objects.Get[*v1.PersistentVolume](context.Background(), s, volume.NewObjectRef("PersistentVolume", "", name))
	if err != nil {
		t.Fatal(err)
	}
	return pv
}

func podOf(claims ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "pod", UID: "pod"}}
	for _, c := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: c, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: c},
		}})
	}
	return p
}

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

func labelled(pairs ...string) pvOption {
	return func(pv *v1.PersistentVolume) {
		pv.Labels = make(map[string]string)
		for i := 0; i < len(pairs); i += 2 {
			pv.Labels[pairs[i]] = pairs[i+1]
		}
	}
}

func inPhase(phase v1.PersistentVolumePhase) pvOption {
	return func(pv *v1.PersistentVolume) { pv.Status.Phase = phase }
}

func withModes(modes ...v1.PersistentVolumeAccessMode) pvOption {
	return func(pv *v1.PersistentVolume) { pv.Spec.AccessModes = modes }
}

func ofMode(mode v1.PersistentVolumeMode) pvOption {
	return func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = &mode }
}

func withAttributes(class string) pvOption {
	return func(pv *v1.PersistentVolume) { pv.Spec.VolumeAttributesClassName = &class }
}

func beingDeleted(pv *v1.PersistentVolume) { pv.DeletionTimestamp = new(metav1.Now()) }

func betaClassed(class string) pvOption {
	return func(pv *v1.PersistentVolume) { metav1.SetMetaDataAnnotation(&pv.ObjectMeta, betaClass, class) }
}

func withoutSource(pv *v1.PersistentVolume) {
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{}
}

func withoutCapacity(pv *v1.PersistentVolume) { pv.Spec.Capacity = nil }

// affinity adds a term of node affinity.
func affinity(expressions ...v1.NodeSelectorRequirement) pvOption {
	return func(pv *v1.PersistentVolume) { addTerm(pv, v1.NodeSelectorTerm{MatchExpressions: expressions}) }
}

// nameAffinity adds a term of node affinity to the node's name.
func nameAffinity(operator v1.NodeSelectorOperator, names ...string) pvOption {
	return func(pv *v1.PersistentVolume) {
		addTerm(pv, v1.NodeSelectorTerm{MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: operator, Values: names}}})
	}
}

func addTerm(pv *v1.PersistentVolume, term v1.NodeSelectorTerm) {
	if pv.Spec.NodeAffinity == nil {
		pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: new(v1.NodeSelector)}
	}
	terms := &pv.Spec.NodeAffinity.Required.NodeSelectorTerms
	*terms = append(*terms, term)
}

func require(key string, operator v1.NodeSelectorOperator, values ...string) v1.NodeSelectorRequirement {
	return v1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
}

func wantsModes(modes ...v1.PersistentVolumeAccessMode) claimOption {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.AccessModes = modes }
}

func wantsMode(mode v1.PersistentVolumeMode) claimOption {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = &mode }
}

func wantsAttributes(class string) claimOption {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = &class }
}

func wantsBetaClass(class string) claimOption {
	return func(c *v1.PersistentVolumeClaim) { metav1.SetMetaDataAnnotation(&c.ObjectMeta, betaClass, class) }
}

// selecting adds a requirement to the claim's selector.
func selecting(key string, operator metav1.LabelSelectorOperator, values ...string) claimOption {
	return func(c *v1.PersistentVolumeClaim) {
		if c.Spec.Selector == nil {
			c.Spec.Selector = new(metav1.LabelSelector)
		}
		c.Spec.Selector.MatchExpressions = append(c.Spec.Selector.MatchExpressions,
			metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: values})
	}
}

func selectingPairs(pairs map[string]string) claimOption {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{MatchLabels: pairs} }
}

// nameOf returns the name of what was found, or nothing.
func nameOf(pv *v1.PersistentVolume) string {
	if pv == nil {
		return ""
	}
	return pv.Name
}
