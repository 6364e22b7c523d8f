// Package specs makes volume specs for checks, and tells what a spec asks for.
package specs

import (
	"reflect"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
)

// PersistentVolume returns one with this source, of volume mode Filesystem.
func PersistentVolume(source v1.PersistentVolumeSource) *v1.PersistentVolume {
	filesystem := v1.PersistentVolumeFilesystem
	pv := &v1.PersistentVolume{}
	pv.Name = "pv"
	pv.Spec = v1.PersistentVolumeSpec{
		Capacity:               v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
		AccessModes:            []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		VolumeMode:             &filesystem,
		PersistentVolumeSource: *source.DeepCopy(),
	}
	return pv
}

// Copy returns a deep copy.
func Copy(s *volume.Spec) *volume.Spec {
	c := *s
	c.Volume, c.PersistentVolume = s.Volume.DeepCopy(), s.PersistentVolume.DeepCopy()
	return &c
}

// IsBlock reports whether it is of volumeMode Block.
func IsBlock(spec *volume.Spec) bool {
	if spec == nil || spec.PersistentVolume == nil {
		return false
	}
	mode := spec.PersistentVolume.Spec.VolumeMode
	return mode != nil && *mode == v1.PersistentVolumeBlock
}

// WantsReadOnly reports whether the spec, or its source's own field ReadOnly,
// asks for it.
func WantsReadOnly(spec *volume.Spec) bool {
	if spec.PersistentVolume != nil {
		return spec.ReadOnly || sourceReadOnly(spec.PersistentVolume.Spec.PersistentVolumeSource)
	}
	return spec.Volume != nil && sourceReadOnly(spec.Volume.VolumeSource)
}

// sourceReadOnly looks at the one source that is set in a union of the API.
func sourceReadOnly(union any) bool {
	for _, source := range reflect.ValueOf(union).Fields() {
		if source.Kind() != reflect.Pointer || source.IsNil() {
			continue
		}
		// CSI's is a pointer.
		if field := source.Elem().FieldByName("ReadOnly"); field.IsValid() {
			field = reflect.Indirect(field)
			return field.IsValid() && field.Bool()
		}
	}
	return false
}

// released returns the spec as a controller has it when its claim is gone.
func released(spec *volume.Spec) *volume.Spec {
	spec = Copy(spec)
	pv := spec.PersistentVolume
	pv.UID = "uid-of-pv"
	if pv.Spec.ClaimRef == nil {
		pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "claim", UID: "uid-of-claim"}
	}
	pv.Status.Phase = v1.VolumeReleased
	return spec
}

// ToRecycle is released with the reclaim policy Recycle.
func ToRecycle(spec *volume.Spec) *volume.Spec {
	spec = released(spec)
	spec.PersistentVolume.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRecycle
	return spec
}

// ToDelete is released with the reclaim policy Delete.
func ToDelete(spec *volume.Spec) *volume.Spec {
	spec = released(spec)
	spec.PersistentVolume.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimDelete
	return spec
}
