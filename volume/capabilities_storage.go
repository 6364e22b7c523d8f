package volume

import (
	"context"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// RecycleEventRecorder takes the progress of a recycling: v1.EventTypeNormal
// or v1.EventTypeWarning, and a message.
type RecycleEventRecorder func(eventType, message string)

// RecyclableVolumePlugin is implemented by plugins that can empty a released
// PersistentVolume for its next claim. Absent: reclaim policy Recycle fails.
type RecyclableVolumePlugin interface {
	VolumePlugin
	// Recycle removes everything below the volume, never a step outside it,
	// and returns nil only when nothing is left there. It may be repeated after
	// a failure, by another process too. When ctx ends it returns within half a
	// minute. Whether the data may be destroyed it asks the host's
	// [ReleaseVerifier].
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
	// NewDeleter returns the deleter of the spec's storage; no I/O.
	NewDeleter(spec *Spec) (Deleter, error)
}

// Deleter deletes the storage behind one volume.
type Deleter interface {
	Volume
	// Delete deletes the storage and nothing else; deleting what is gone
	// succeeds. Where it fails or the process dies, calling it again deletes
	// the rest. When ctx ends it returns within half a minute. Whether the data
	// may be destroyed it asks the host's [ReleaseVerifier].
	Delete(ctx context.Context) error
}

// StorageFinder is implemented by deleters that know whether there was anything to
// delete. Absent: there was.
type StorageFinder interface {
	Deleter
	// Found reports, once Delete has returned nil, whether the storage was there.
	Found() bool
}

// FoundStorage reports whether the storage was there that d has deleted; see
// [StorageFinder].
func FoundStorage(d Deleter) bool {
	f, ok := d.(StorageFinder)
	return !ok || f.Found()
}

// AsDeletable returns p's [DeletableVolumePlugin], if it is one.
func AsDeletable(p VolumePlugin) (DeletableVolumePlugin, bool) {
	c, ok := p.(DeletableVolumePlugin)
	return c, ok
}

// VolumeOptions are the wishes of a claim and its storage class for a volume
// that is to be made.
type VolumeOptions struct {
	// PVName is the name that the new PersistentVolume shall have.
	PVName string
	// PVC is the claim; it must not be changed.
	PVC *v1.PersistentVolumeClaim
	// Parameters are the storage class's.
	Parameters map[string]string
	// PersistentVolumeReclaimPolicy and MountOptions are the class's.
	PersistentVolumeReclaimPolicy v1.PersistentVolumeReclaimPolicy
	MountOptions                  []string
	// VolumeAttributesClass is the claim's, one of this plugin's; nil: none. A
	// plugin that knows no attributes refuses it. It must not be changed.
	VolumeAttributesClass *storagev1.VolumeAttributesClass
}

// ProvisionableVolumePlugin is implemented by plugins that can make storage.
// Absent: classes that name the plugin as provisioner do not provision.
type ProvisionableVolumePlugin interface {
	VolumePlugin
	// NewProvisioner returns the provisioner for one claim; no I/O. Parameters
	// it does not know are refused.
	NewProvisioner(VolumeOptions) (Provisioner, error)
}

// Provisioner makes the storage for one claim.
type Provisioner interface {
	// Provision makes the storage and returns its PersistentVolume, which the
	// caller stores and owns. Repeating it, also at the same time, after a
	// failure or by another process, returns the same storage and makes no
	// other; of several calls at the same time one at least succeeds. When ctx ends it returns within half a minute.
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
	// actual size. Repeating it is harmless.
	ExpandVolumeDevice(ctx context.Context, spec *Spec, newSize, oldSize resource.Quantity) (resource.Quantity, error)
}

// AsExpandable returns p's [ExpandableVolumePlugin], if it is one.
func AsExpandable(p VolumePlugin) (ExpandableVolumePlugin, bool) {
	c, ok := p.(ExpandableVolumePlugin)
	return c, ok
}

// NodeResizeOptions say what is to be grown on the node.
type NodeResizeOptions struct {
	VolumeSpec *Spec
	// DevicePath is the device, DeviceMountPath where it is mounted,
	// DeviceStagePath where CSI staged it; empty where there is none.
	DevicePath, DeviceMountPath, DeviceStagePath string
	NewSize, OldSize                             resource.Quantity
}

// NodeExpandableVolumePlugin is implemented by plugins that must act on the
// node when their storage has grown. Absent: nothing is to do there.
type NodeExpandableVolumePlugin interface {
	VolumePlugin
	RequiresFSResize() bool
	// NodeExpand grows the file system; false means it must be called again
	// after the volume is mounted.
	NodeExpand(ctx context.Context, options NodeResizeOptions) (bool, error)
}

// AsNodeExpandable returns p's [NodeExpandableVolumePlugin], if it is one.
func AsNodeExpandable(p VolumePlugin) (NodeExpandableVolumePlugin, bool) {
	c, ok := p.(NodeExpandableVolumePlugin)
	return c, ok
}
