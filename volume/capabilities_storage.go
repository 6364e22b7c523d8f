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
	// Provisioner is the storage class's provisioner: the plugin's name, or another
	// one that it provisions for ([NamedProvisionerPlugin]).
	Provisioner string
	// Parameters are the storage class's parameters.
	Parameters map[string]string
	// PersistentVolumeReclaimPolicy and MountOptions come from the storage class.
	PersistentVolumeReclaimPolicy v1.PersistentVolumeReclaimPolicy
	MountOptions                  []string
	// VolumeAttributesClass is the claim's class, which names this plugin as its
	// driver; nil: the claim has none. A plugin that knows no attributes refuses
	// it. It must not be changed.
	VolumeAttributesClass *storagev1.VolumeAttributesClass
	// Check says whether the caller can use a volume as its CSI driver has made it; nil: it can
	// use any. What it refuses is deleted again (csi/controller). Other plugins' volumes have
	// nothing to be checked, and they do not call it.
	Check func(*v1.PersistentVolume) error
}

// ProvisionableVolumePlugin is implemented by plugins that can make storage.
// Absent: classes that name the plugin as provisioner do not provision.
type ProvisionableVolumePlugin interface {
	VolumePlugin
	// NewProvisioner returns the provisioner for one claim. It does no I/O. It
	// refuses parameters that it does not know.
	NewProvisioner(VolumeOptions) (Provisioner, error)
}

// CloningVolumePlugin is implemented by plugins that can make a volume with the content of
// another one. Absent: claims with a data source get no volume from the plugin.
type CloningVolumePlugin interface {
	ProvisionableVolumePlugin
	// NewCloner is NewProvisioner for a volume that begins as a copy of source, whose size
	// and volume mode fit the claim. It refuses a source that the plugin cannot copy. Of
	// source only name, UID and the volume's source are set. It must not be changed.
	NewCloner(options VolumeOptions, source *v1.PersistentVolume) (Provisioner, error)
}

// AsCloning returns p's [CloningVolumePlugin], if it is one.
func AsCloning(p VolumePlugin) (CloningVolumePlugin, bool) {
	c, ok := p.(CloningVolumePlugin)
	return c, ok
}

// NamedProvisionerPlugin is implemented by plugins that provision under other names than
// their own, such as those of CSI drivers. Absent: storage classes name the plugin.
type NamedProvisionerPlugin interface {
	ProvisionableVolumePlugin
	// ProvisionsFor reports whether a storage class with this provisioner means the
	// plugin. It does no I/O, and the answer never changes.
	ProvisionsFor(provisioner string) bool
}

// ProvisionsFor reports whether a storage class with this provisioner means p, by its own
// name or by another; see [NamedProvisionerPlugin].
func ProvisionsFor(p VolumePlugin, provisioner string) bool {
	if p.GetPluginName() == provisioner {
		return true
	}
	c, ok := p.(NamedProvisionerPlugin)
	return ok && c.ProvisionsFor(provisioner)
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

// CanExpand reports whether p is a [SpecExpander] or an [ExpandableVolumePlugin].
func CanExpand(p VolumePlugin) bool {
	_, bySpec := p.(SpecExpander)
	_, byDevice := AsExpandable(p)
	return bySpec || byDevice
}

// Expand grows a volume's storage to at least size, as a [SpecExpander] or else an
// [ExpandableVolumePlugin] does it. It returns the size that the storage has, and whether the
// node has a part to do. Of another plugin the error is an *[UnsupportedError].
func Expand(ctx context.Context, p VolumePlugin, spec *Spec, size, old resource.Quantity) (reached resource.Quantity, node bool, err error) {
	if c, ok := p.(SpecExpander); ok {
		return c.ExpandSpec(ctx, spec, size)
	}
	c, ok := AsExpandable(p)
	if !ok {
		return old, false, &UnsupportedError{Volume: spec.Name(), Type: "expansion", Reason: p.GetPluginName() + " cannot expand volumes", Replacement: "enlarge the volume by hand, and then its spec.capacity"}
	}
	reached, err = c.ExpandVolumeDevice(ctx, spec, size, old)
	_, node = AsNodeExpandable(p)
	return reached, node && c.RequiresFSResize(), err
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

// PodRunner runs pods to their end, such as the pod that empties a volume for
// recycling. In a cluster it is a client of the API.
type PodRunner interface {
	// RunPod creates the pod, waits until it has ended and removes it. It reports
	// the pod's progress, above all its events, to record. It only reads the
	// argument pod.
	//
	// It is idempotent by the pod's namespace and name:
	//
	//   - The pod may exist already, because ctx ended an earlier wait. Then
	//     RunPod waits for that pod and removes it.
	//   - The success of such a pod counts only if the runner can tell that it
	//     made the pod itself. Every user who may make pods there can use the
	//     name and the label. Without proof RunPod runs the pod once more.
	//   - A pod of this name with another label recyclerpod.Label is another pod.
	//     Its success says nothing. That is an error.
	//
	// It calls mayRun because the data may belong to another claim meanwhile:
	//
	//   - It does so right before it creates the pod or begins to wait for an
	//     existing one, and then every few seconds until the pod has ended.
	//   - If mayRun fails, RunPod removes an existing pod without a grace period,
	//     however far it is, and returns the error.
	//
	// When ctx ends, RunPod removes a pod that has not started, so that it does
	// not start later. It leaves a running pod for the next call.
	//
	// A pod that did not succeed is an error, best recyclerpod.ErrFailed of
	// recyclerpod.Result.
	RunPod(ctx context.Context, pod *v1.Pod, mayRun func(ctx context.Context) error, record RecycleEventRecorder) error
}

// ReleaseVerifier decides whether the data of a PersistentVolume may be
// destroyed. It is called before the deletion, again right before the first file,
// and about every second while the deletion goes on. So it should answer from
// memory.
type ReleaseVerifier interface {
	// VerifyReleased returns nil only if the data may be destroyed:
	//
	//   - The stored PersistentVolume is this one, by UID and source.
	//   - It is Released by the claim that its claimRef names by UID, or it is
	//     Failed because it could not be reclaimed before.
	//   - That claim is gone, is another one, or has another volume.
	//   - No other claim, PersistentVolume or inline volume uses this data.
	//
	// If one of these is not known, that is an error. VerifyReleased only reads
	// the argument.
	VerifyReleased(ctx context.Context, pv *v1.PersistentVolume) error
}

// UnusedVerifier is implemented by a [ReleaseVerifier] that also knows of storage that no
// PersistentVolume has been stored for yet. Absent: such storage is kept.
type UnusedVerifier interface {
	// VerifyUnused returns nil only if no other PersistentVolume, and no pod's inline
	// volume, shows the data of this one, which is not stored. It only reads the argument.
	VerifyUnused(ctx context.Context, pv *v1.PersistentVolume) error
}
