package volume

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Spec is one volume for a plugin: an inline volume of a pod, or a
// PersistentVolume. Exactly one of Volume and PersistentVolume is set. Once a
// plugin has received a Spec, the Spec and the objects that it points to never
// change.
type Spec struct {
	Volume           *v1.Volume
	PersistentVolume *v1.PersistentVolume
	// ReadOnly is the pod's option for a PersistentVolume
	// (persistentVolumeClaim.readOnly). Inline sources have their own.
	ReadOnly bool
	// InlineVolumeSpecForCSIMigration marks a PersistentVolume that was made
	// from an inline volume by translation to CSI.
	InlineVolumeSpecForCSIMigration bool
	// Migrated marks a spec that was translated from an in-tree source to CSI.
	Migrated bool
}

// NewSpecFromVolume returns the Spec of an inline volume. The Spec keeps the
// pointer.
func NewSpecFromVolume(v *v1.Volume) *Spec { return &Spec{Volume: v} }

// NewSpecFromPersistentVolume returns the Spec of a PersistentVolume as a pod
// uses it, read-only or not. The Spec keeps the pointer.
func NewSpecFromPersistentVolume(pv *v1.PersistentVolume, readOnly bool) *Spec {
	return &Spec{PersistentVolume: pv, ReadOnly: readOnly}
}

// Name is the volume's name in the pod, or the PersistentVolume's name. The
// volume's directory is named after it. It is empty for a nil or empty Spec.
func (s *Spec) Name() string {
	switch {
	case s == nil:
		return ""
	case s.Volume != nil:
		return s.Volume.Name
	case s.PersistentVolume != nil:
		return s.PersistentVolume.Name
	}
	return ""
}

// IsKubeletExpandable reports whether the node may be asked to expand the volume.
// Inline sources cannot grow. Of PersistentVolumes, FlexVolume, CSI and those
// whose file system is the node's can grow, as the plugin decides.
func (s *Spec) IsKubeletExpandable() bool {
	return s != nil && s.PersistentVolume != nil
}

// IsBlock reports whether containers see the volume as a device and not as a file
// system: a PersistentVolume of volumeMode Block.
func (s *Spec) IsBlock() bool {
	if s == nil || s.PersistentVolume == nil {
		return false
	}
	mode := s.PersistentVolume.Spec.VolumeMode
	return mode != nil && *mode == v1.PersistentVolumeBlock
}

// ObjectRef names an API object by its kind ("Secret", "ConfigMap", "Pod"), its
// namespace and its name. The namespace of cluster-wide kinds is empty.
type ObjectRef struct {
	Kind string
	types.NamespacedName
}

// NewObjectRef returns the reference to an object.
func NewObjectRef(kind, namespace, name string) ObjectRef {
	return ObjectRef{Kind: kind, NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// String is "Kind namespace/name", or "Kind name" for cluster-wide kinds.
func (r ObjectRef) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.NamespacedName.String()
}
