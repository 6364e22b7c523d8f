package volume

import (
	"context"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// RecycleEventRecorder receives the progress of a recycling. eventType is
// v1.EventTypeNormal or v1.EventTypeWarning.
type RecycleEventRecorder func(eventType, message string)

// RecyclableVolumePlugin is implemented by plugins that can empty a released
// PersistentVolume for its next claim. Absent: reclaim policy Recycle fails.
type RecyclableVolumePlugin interface {
	VolumePlugin
	// Recycle removes everything below the volume and nothing outside it. It
	// returns nil only when nothing is left there. It may be repeated after a
	// failure, by another process too. When ctx ends it returns within half a
	// minute. It asks the host's [ReleaseVerifier] whether the data may be
	// destroyed.
	Recycle(ctx context.Context, pvName string, spec *Spec, record RecycleEventRecorder) error
}

// AsRecyclable returns p's [RecyclableVolumePlugin], if it is one.
func AsRecyclable(p VolumePlugin) (RecyclableVolumePlugin, bool) {
	c, ok := p.(RecyclableVolumePlugin)
	return c, ok
}

// DeletableVolumePlugin is implemented by plugins that can delete the storage
// behind a PersistentVolume. Absent: reclaim policy Delete fails.
type DeletableVolumePlugin interface {
	VolumePlugin
	// NewDeleter returns the deleter of the spec's storage. It does no I/O.
	NewDeleter(spec *Spec) (Deleter, error)
}

// Deleter deletes the storage behind one volume.
type Deleter interface {
	Volume
	// Delete deletes the storage and nothing else. It succeeds if the storage is
	// gone already. After a failure or a crash, another call deletes the rest.
	// When ctx ends it returns within half a minute. It asks the host's
	// [ReleaseVerifier] whether the data may be destroyed.
	Delete(ctx context.Context) error
}

// AsDeletable returns p's [DeletableVolumePlugin], if it is one.
func AsDeletable(p VolumePlugin) (DeletableVolumePlugin, bool) {
	c, ok := p.(DeletableVolumePlugin)
	return c, ok
}

// VolumeOptions describe a volume that is to be provisioned, by a claim and its
// storage class.
type VolumeOptions struct {
	// PVName is the name of the new PersistentVolume.
	PVName string
	// PVC is the claim; it must not be changed.
	PVC *v1.PersistentVolumeClaim
	// Parameters are the storage class's parameters.
	Parameters map[string]string
	// PersistentVolumeReclaimPolicy and MountOptions come from the storage class.
	PersistentVolumeReclaimPolicy v1.PersistentVolumeReclaimPolicy
	MountOptions                  []string
	// VolumeAttributesClass is the claim's class, which names this plugin as its
	// driver; nil: the claim has none. A plugin that knows no attributes refuses
	// it. It must not be changed.
	VolumeAttributesClass *storagev1.VolumeAttributesClass
}

// ProvisionableVolumePlugin is implemented by plugins that can make storage.
// Absent: classes that name the plugin as provisioner do not provision.
type ProvisionableVolumePlugin interface {
	VolumePlugin
	// NewProvisioner returns the provisioner for one claim. It does no I/O. It
	// refuses parameters that it does not know.
	NewProvisioner(VolumeOptions) (Provisioner, error)
}

// Provisioner makes the storage for one claim.
type Provisioner interface {
	// Provision makes the storage and returns its PersistentVolume. The caller
	// stores the PersistentVolume and owns it.
	//
	//   - A repeated call returns the same storage and makes no other. This also
	//     holds after a failure, and for calls at the same time and by another
	//     process.
	//   - Of several calls at the same time, at least one succeeds.
	//   - When ctx ends it returns within half a minute.
	Provision(ctx context.Context, selectedNode *v1.Node, allowedTopologies []v1.TopologySelectorTerm) (*v1.PersistentVolume, error)
}

// AsProvisionable returns p's [ProvisionableVolumePlugin], if it is one.
func AsProvisionable(p VolumePlugin) (ProvisionableVolumePlugin, bool) {
	c, ok := p.(ProvisionableVolumePlugin)
	return c, ok
}

// ExpandableVolumePlugin is implemented by plugins whose storage can grow.
// Absent: requests to grow are refused.
type ExpandableVolumePlugin interface {
	VolumePlugin
	RequiresFSResize() bool
	// ExpandVolumeDevice grows the storage to at least newSize and returns its
	// actual size. It is idempotent.
	ExpandVolumeDevice(ctx context.Context, spec *Spec, newSize, oldSize resource.Quantity) (resource.Quantity, error)
}

// AsExpandable returns p's [ExpandableVolumePlugin], if it is one.
func AsExpandable(p VolumePlugin) (ExpandableVolumePlugin, bool) {
	c, ok := p.(ExpandableVolumePlugin)
	return c, ok
}

// NodeResizeOptions describe a file system that is to grow on the node.
type NodeResizeOptions struct {
	VolumeSpec *Spec
	// DevicePath is the device. DeviceMountPath is its mount point.
	// DeviceStagePath is the path at which CSI staged it. Each is empty if there
	// is none.
	DevicePath, DeviceMountPath, DeviceStagePath string
	NewSize, OldSize                             resource.Quantity
}

// NodeExpandableVolumePlugin is implemented by plugins that must act on the node
// when their storage has grown. Absent: the node has nothing to do.
type NodeExpandableVolumePlugin interface {
	VolumePlugin
	RequiresFSResize() bool
	// NodeExpand grows the file system. It returns false if it must be called
	// again after the volume is mounted.
	NodeExpand(ctx context.Context, options NodeResizeOptions) (bool, error)
}

// AsNodeExpandable returns p's [NodeExpandableVolumePlugin], if it is one.
func AsNodeExpandable(p VolumePlugin) (NodeExpandableVolumePlugin, bool) {
	c, ok := p.(NodeExpandableVolumePlugin)
	return c, ok
}
