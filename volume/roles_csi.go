package volume

import (
	"context"
	"errors"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// CSIDriverGetter reads the CSIDriver objects of the cluster, which say how a node treats
// the volumes of a driver. If there is no object, the error matches [ErrNotFound]. Absent:
// drivers have the defaults of the CSI plugin's configuration. The caller must not change
// the result.
type CSIDriverGetter interface {
	GetCSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
}

// AttachmentGetter reads VolumeAttachments, of which a node needs the metadata for the
// driver. If there is no object, the error matches [ErrNotFound]. Absent: volumes are
// mounted without attaching. The caller must not change the result.
type AttachmentGetter interface {
	GetVolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error)
}

// CSINodePublisher tells the cluster which CSI drivers a node has: the CSINode object, and
// what the Node says of them. Absent: nothing is told, and drivers mount all the same. Its
// methods are idempotent and may be called concurrently.
type CSINodePublisher interface {
	// PublishDriver enters a driver, or what has changed of it. segments are the node's
	// place in the driver's topology.
	PublishDriver(ctx context.Context, d storagev1.CSINodeDriver, segments map[string]string) error
	// WithdrawDriver removes it; one that is not there is success.
	WithdrawDriver(ctx context.Context, driver string) error
}

// NodeResizeReporter tells the cluster how a node's part of growing a volume ended: the only
// write of a node about claims. Absent: nothing is told, and volumes grow all the same.
type NodeResizeReporter interface {
	// ReportNodeResize enters the end of the node's part into the claim's status. If err is
	// nil, the volume has the size. If it matches [ErrResizeInfeasible], the size is not tried
	// again. If it matches [ErrResizeInUse], it is tried again at the next mount. If it
	// matches [ErrResizeFailed], it is tried again after a pause. A claim of
	// another UID, or none, is success, for there is nothing to tell. It is idempotent and may
	// be called concurrently.
	ReportNodeResize(ctx context.Context, claim types.NamespacedName, uid types.UID, size resource.Quantity, err error) error
}

// NodeResizeStartReporter is a [NodeResizeReporter] that tells, too, that the node's part has
// begun. Absent: the claim's status goes on saying that the node's part is pending, which
// controllers treat alike.
type NodeResizeStartReporter interface {
	NodeResizeReporter
	// ReportNodeResizeStarted enters NodeResizeInProgress into the claim's status, if that says
	// NodeResizePending. Else it is success and changes nothing, as for a claim of another UID,
	// or none. It is idempotent and may be called concurrently.
	ReportNodeResizeStarted(ctx context.Context, claim types.NamespacedName, uid types.UID) error
}

// ReportNodeResizeStarted calls the method of that name, if the reporter has it.
func ReportNodeResizeStarted(ctx context.Context, r NodeResizeReporter, claim types.NamespacedName, uid types.UID) error {
	if able, ok := r.(NodeResizeStartReporter); ok {
		return able.ReportNodeResizeStarted(ctx, claim, uid)
	}
	return nil
}

// PodNamedVolumePlugin is implemented by plugins whose inline volumes have a name of
// their own in each pod. Absent: GetVolumeName names them.
type PodNamedVolumePlugin interface {
	VolumePlugin
	// GetPodVolumeName returns the name of the spec's volume in a pod. For a
	// PersistentVolume it is GetVolumeName's. It does no I/O.
	GetPodVolumeName(spec *Spec, podUID types.UID) (string, error)
}

// PodVolumeName names the volume of a spec in a pod; see [PodNamedVolumePlugin].
func PodVolumeName(p VolumePlugin, spec *Spec, podUID types.UID) (string, error) {
	if c, ok := p.(PodNamedVolumePlugin); ok {
		return c.GetPodVolumeName(spec, podUID)
	}
	return p.GetVolumeName(spec)
}

// StagedDevice is a device that may be mounted once for the node.
type StagedDevice struct {
	// Spec suffices to name and unmount it; nil: its traces do not say which volume it is, as
	// Err says. Path is where it is mounted, or is to be; it may differ from the place that the
	// plugin has for the spec today.
	Spec *Spec
	Path string
	// MayBe reports of a device without a Spec whether it may be the volume that GetVolumeName
	// gives a name. Such a volume must not be detached.
	MayBe func(volumeName string) bool
	Err   error
	// Published: pods have it, too, which must go before it is unmounted.
	Published bool
}

// StagedFinder is implemented by plugins whose devices leave traces on disk besides their
// volumes' records. Absent: there are none.
type StagedFinder interface {
	VolumePlugin
	// FindStaged returns the devices with a trace, also those that volumes use. With an
	// error it returns those that it found all the same.
	FindStaged(ctx context.Context) ([]StagedDevice, error)
}

// FindStaged returns the devices that p finds on disk; see [StagedFinder].
func FindStaged(ctx context.Context, p VolumePlugin) ([]StagedDevice, error) {
	if c, ok := p.(StagedFinder); ok {
		return c.FindStaged(ctx)
	}
	return nil, nil
}

// RunningPlugin is implemented by plugins that work beside their volumes, such as by
// watching for the drivers that register themselves. Absent: the plugin only acts when it
// is called.
type RunningPlugin interface {
	VolumePlugin
	// Run works until ctx ends. It is called once, when the manager has recovered. It
	// calls wake with a source that may be there by now (volumesource.Describe), or with
	// the name of a source's server (volumesource.Health.Source) that may answer again:
	// volumes of that source are then tried at once. An error says
	// that the work cannot be done; the plugin's volumes are tried all the same.
	Run(ctx context.Context, wake func(source string)) error
}

// RunPlugin has p work until ctx ends. It returns nil at once for plugins that are no
// [RunningPlugin].
func RunPlugin(ctx context.Context, p VolumePlugin, wake func(source string)) error {
	if c, ok := p.(RunningPlugin); ok {
		return c.Run(ctx, wake)
	}
	return nil
}

// Attachment is the result of attaching a volume to a node.
type Attachment struct {
	// DevicePath is the device on the node, if that is known.
	DevicePath string
	// Metadata is for the node's plugin: a VolumeAttachment's status.attachmentMetadata.
	Metadata map[string]string
}

// SpecAttacher is implemented by plugins that attach volumes to nodes from elsewhere than the
// node, where the whole spec is needed to detach, too. The calls are idempotent. The caller notes
// an attachment before AttachSpec, so that it can be detached after a crash. Absent: an attacher
// of package attachdetach leaves the volumes alone, and a node that attaches its own ones calls
// the Attacher and Detacher of [AttachableVolumePlugin].
type SpecAttacher interface {
	VolumePlugin
	// AttachSpec attaches the volume. A volume that needs no attaching has the zero
	// Attachment.
	AttachSpec(ctx context.Context, spec *Spec, node types.NodeName) (Attachment, error)
	// DetachSpec detaches the volume. The error matches [ErrInUse] if the node still uses it
	// as far as the plugin can see.
	DetachSpec(ctx context.Context, spec *Spec, node types.NodeName) error
}

// SpecExpander is implemented by plugins whose storage grows by steps off the node and on it.
// Absent: see [ExpandableVolumePlugin].
type SpecExpander interface {
	VolumePlugin
	// ExpandSpec grows the storage to at least size, and returns the size that it has.
	// node: the node has a part to do, see [NodeExpandableVolumePlugin]. It is idempotent.
	// Errors match [ErrResizeInUse] or [ErrResizeInfeasible] as with NodeExpand.
	ExpandSpec(ctx context.Context, spec *Spec, size resource.Quantity) (reached resource.Quantity, node bool, err error)
}

// ModifiableVolumePlugin is implemented by plugins that can give a volume the parameters of
// a VolumeAttributesClass. Absent: the change is refused.
type ModifiableVolumePlugin interface {
	VolumePlugin
	// Modify gives the volume the parameters of the class. It is idempotent, and does not
	// change its arguments. An error matches [ErrModifyInfeasible] if the volume can never
	// have them.
	Modify(ctx context.Context, spec *Spec, class *storagev1.VolumeAttributesClass) error
}

// ErrModifyInfeasible says that a volume can never have the parameters of a class.
var ErrModifyInfeasible = errors.New("the volume cannot have these attributes")

// Errors of NodeExpand and ExpandSpec match these.
var (
	// ErrResizeInfeasible says that the volume can never get this size.
	ErrResizeInfeasible = errors.New("the volume cannot get this size")
	// ErrResizeFailed says that a node's attempt has failed for certain: nothing of it goes on,
	// and the volume has the size that it had. It is tried again.
	ErrResizeFailed = errors.New("the volume has not grown")
	// ErrResizeInUse says that the volume cannot grow while it is in use.
	ErrResizeInUse = errors.New("the volume cannot grow while it is in use")
)
