// Package pvbuild builds claims and PersistentVolumes for tests, and has the rules of
// matching once more as a plain scan ([Scan]), which the index is held against.
package pvbuild

import (
	"context"
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// StoreOf returns a store that holds objects.
func StoreOf(t testing.TB, all ...metav1.Object) *objects.Store {
	t.Helper()
	s := objects.NewStore()
	for _, o := range all {
		if _, err := s.Create(context.Background(), o); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// ClaimRef returns the reference to a claim in namespace ops.
func ClaimRef(name string) volume.ObjectRef {
	return volume.NewObjectRef("PersistentVolumeClaim", "ops", name)
}

// GetClaim returns a claim of namespace ops, or ends the test.
func GetClaim(t testing.TB, s objects.Source, name string) *v1.PersistentVolumeClaim {
	t.Helper()
	c, err := objects.Get[*v1.PersistentVolumeClaim](context.Background(), s, ClaimRef(name))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// GetPV returns a volume, or ends the test.
func GetPV(t testing.TB, s objects.Source, name string) *v1.PersistentVolume {
	t.Helper()
	pv, err := objects.Get[*v1.PersistentVolume](context.Background(), s, volume.NewObjectRef("PersistentVolume", "", name))
	if err != nil {
		t.Fatal(err)
	}
	return pv
}

// PodOf returns a pod that uses claims.
func PodOf(claims ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "pod", UID: "pod"}}
	for _, c := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: c, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: c},
		}})
	}
	return p
}

// Option changes a volume that is built.
type Option func(*v1.PersistentVolume)

// NewPV returns an NFS volume of a size, without a class.
func NewPV(name, size string, options ...Option) *v1.PersistentVolume {
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

// Class sets a volume's class.
func Class(name string) Option {
	return func(pv *v1.PersistentVolume) { pv.Spec.StorageClassName = name }
}

// ForClaim sets the claim that a volume refers to.
func ForClaim(name string, uid types.UID) Option {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ops", Name: name, UID: uid}
	}
}

// OnHost binds a volume to one node.
func OnHost(host string) Option {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{host}}},
		}}}}
	}
}

// ClaimOption changes a claim that is built.
type ClaimOption func(*v1.PersistentVolumeClaim)

// NewClaim returns a claim of namespace ops.
func NewClaim(name, size string, options ...ClaimOption) *v1.PersistentVolumeClaim {
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

// OfClass sets a claim's class.
func OfClass(name string) ClaimOption {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

// Naming sets the volume that a claim names.
func Naming(pv string) ClaimOption {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = pv }
}

// Labelled sets labels, given as pairs of key and value.
func Labelled(pairs ...string) Option {
	return func(pv *v1.PersistentVolume) {
		pv.Labels = make(map[string]string)
		for i := 0; i < len(pairs); i += 2 {
			pv.Labels[pairs[i]] = pairs[i+1]
		}
	}
}

// InPhase sets a volume's phase.
func InPhase(phase v1.PersistentVolumePhase) Option {
	return func(pv *v1.PersistentVolume) { pv.Status.Phase = phase }
}

// WithModes sets a volume's access modes.
func WithModes(modes ...v1.PersistentVolumeAccessMode) Option {
	return func(pv *v1.PersistentVolume) { pv.Spec.AccessModes = modes }
}

// OfMode sets a volume's mode.
func OfMode(mode v1.PersistentVolumeMode) Option {
	return func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = &mode }
}

// WithAttributes sets a volume's VolumeAttributesClass.
func WithAttributes(class string) Option {
	return func(pv *v1.PersistentVolume) { pv.Spec.VolumeAttributesClassName = &class }
}

// BeingDeleted sets the time of deletion.
func BeingDeleted(pv *v1.PersistentVolume) { pv.DeletionTimestamp = new(metav1.Now()) }

// BetaClassed sets a class by the old annotation.
func BetaClassed(class string) Option {
	return func(pv *v1.PersistentVolume) { metav1.SetMetaDataAnnotation(&pv.ObjectMeta, betaClass, class) }
}

// WithoutSource removes what the volume is.
func WithoutSource(pv *v1.PersistentVolume) {
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{}
}

// WithoutCapacity removes the capacity.
func WithoutCapacity(pv *v1.PersistentVolume) { pv.Spec.Capacity = nil }

// Affinity adds a term of node affinity.
func Affinity(expressions ...v1.NodeSelectorRequirement) Option {
	return func(pv *v1.PersistentVolume) { addTerm(pv, v1.NodeSelectorTerm{MatchExpressions: expressions}) }
}

// NameAffinity adds a term of node affinity to the node's name.
func NameAffinity(operator v1.NodeSelectorOperator, names ...string) Option {
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

// Require returns a requirement of a node selector.
func Require(key string, operator v1.NodeSelectorOperator, values ...string) v1.NodeSelectorRequirement {
	return v1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
}

// WantsModes sets a claim's access modes.
func WantsModes(modes ...v1.PersistentVolumeAccessMode) ClaimOption {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.AccessModes = modes }
}

// WantsMode sets a claim's volume mode.
func WantsMode(mode v1.PersistentVolumeMode) ClaimOption {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = &mode }
}

// WantsAttributes sets a claim's VolumeAttributesClass.
func WantsAttributes(class string) ClaimOption {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = &class }
}

// WantsBetaClass sets a claim's class by the old annotation.
func WantsBetaClass(class string) ClaimOption {
	return func(c *v1.PersistentVolumeClaim) { metav1.SetMetaDataAnnotation(&c.ObjectMeta, betaClass, class) }
}

// Selecting adds a requirement to the claim's selector.
func Selecting(key string, operator metav1.LabelSelectorOperator, values ...string) ClaimOption {
	return func(c *v1.PersistentVolumeClaim) {
		if c.Spec.Selector == nil {
			c.Spec.Selector = new(metav1.LabelSelector)
		}
		c.Spec.Selector.MatchExpressions = append(c.Spec.Selector.MatchExpressions,
			metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: values})
	}
}

// SelectingPairs has a claim select volumes by labels.
func SelectingPairs(pairs map[string]string) ClaimOption {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{MatchLabels: pairs} }
}

// VolumeName returns the name of what was found, or nothing.
func VolumeName(pv *v1.PersistentVolume) string {
	if pv == nil {
		return ""
	}
	return pv.Name
}

// MemoryDir returns a directory on tmpfs where there is one, since thousands of
// synced files take their time on a disk.
func MemoryDir(t *testing.T) string {
	dir, err := "", error(nil)
	if os.Getenv("TMPDIR") == "" {
		dir, err = os.MkdirTemp("/dev/shm", "records")
	}
	if dir == "" || err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
