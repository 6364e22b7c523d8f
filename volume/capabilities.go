package volume

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PersistentVolumePlugin is implemented by plugins whose source a
// PersistentVolume can give. Absent: the source is inline only.
type PersistentVolumePlugin interface {
	VolumePlugin
	// GetAccessModes returns the access modes that this kind of storage can offer
	// at most.
	GetAccessModes() []v1.PersistentVolumeAccessMode
}

// AsPersistentVolume returns p's [PersistentVolumePlugin], if it is one.
func AsPersistentVolume(p VolumePlugin) (PersistentVolumePlugin, bool) {
	c, ok := p.(PersistentVolumePlugin)
	return c, ok
}

// MountOptionVolumePlugin is implemented by plugins that pass a
// PersistentVolume's mount options on. Absent: a PersistentVolume with mount
// options is refused.
type MountOptionVolumePlugin interface {
	VolumePlugin
	SupportsMountOption() bool
}

// SupportsMountOption reports whether p passes mount options on; false for
// plugins that are no [MountOptionVolumePlugin].
func SupportsMountOption(p VolumePlugin) bool {
	c, ok := p.(MountOptionVolumePlugin)
	return ok && c.SupportsMountOption()
}

// DependentVolumePlugin is implemented by plugins whose volumes show the
// contents of API objects. Absent: volumes depend on nothing.
type DependentVolumePlugin interface {
	VolumePlugin
	// DependsOn returns the objects that the volume's contents come from. A
	// change of one of them calls for another SetUp of the pod's volume. A
	// reference without a name means all objects of its kind. DependsOn does no
	// I/O. The objects need not exist.
	DependsOn(*Spec, *v1.Pod) []ObjectRef
}

// DependsOn returns the objects that the volume depends on. It is nil for plugins
// that are no [DependentVolumePlugin].
func DependsOn(p VolumePlugin, spec *Spec, pod *v1.Pod) []ObjectRef {
	if c, ok := p.(DependentVolumePlugin); ok {
		return c.DependsOn(spec, pod)
	}
	return nil
}

// WorkMountPlugin is implemented by plugins that also make temporary mounts for
// their own work. An example is an export in which the plugin makes a directory.
// Absent: all mounts of the plugin are volumes and devices.
type WorkMountPlugin interface {
	VolumePlugin
	// GetWorkDir returns the parent of the directories of these mounts, one for
	// each. It lies strictly below the plugin's own directory. GetWorkDir does no
	// I/O.
	GetWorkDir() string
	// SweepWork unmounts and removes the mounts that a crash left there. It
	// leaves alone the mounts that this plugin uses at present. It may wait for a
	// server that does not answer. It is idempotent.
	SweepWork(context.Context) error
}

// AsWorkMount returns p's [WorkMountPlugin], if it is one.
func AsWorkMount(p VolumePlugin) (WorkMountPlugin, bool) {
	c, ok := p.(WorkMountPlugin)
	return c, ok
}

// SELinuxVolumePlugin is implemented by plugins that can mount with an SELinux
// context. Absent: files are relabelled instead, where that is allowed.
type SELinuxVolumePlugin interface {
	VolumePlugin
	SupportsSELinuxContextMount(ctx context.Context, spec *Spec) (bool, error)
}

// AsSELinux returns p's [SELinuxVolumePlugin], if it is one.
func AsSELinux(p VolumePlugin) (SELinuxVolumePlugin, bool) {
	c, ok := p.(SELinuxVolumePlugin)
	return c, ok
}

// DeviceMounterArgs are the options for a device that is mounted once per node.
type DeviceMounterArgs struct {
	// FsGroup is for file systems that take a group as a mount option. The files
	// get their group later, when the device is bound into a pod
	// ([fsgroup.Set]).
	FsGroup      *int64
	SELinuxLabel string
	// Progress receives the progress of a long mount, as in [MounterArgs]; nil:
	// progress is not reported.
	Progress func(Progress)
}

// DeviceMountableVolumePlugin is implemented by plugins that mount a device once
// on the node and bind it into each pod. Absent: each pod's SetUp does
// everything.
type DeviceMountableVolumePlugin interface {
	VolumePlugin
	NewDeviceMounter() (DeviceMounter, error)
	NewDeviceUnmounter() (DeviceUnmounter, error)
	// GetDeviceMountRefs returns the other mount points of the file system that
	// is mounted at deviceMountPath. It reads them from the mount table.
	GetDeviceMountRefs(deviceMountPath string) ([]string, error)
	// CanDeviceMount reports whether this spec needs a device mount.
	CanDeviceMount(spec *Spec) (bool, error)
}

// DeviceMounter mounts a device at its place below plugins/.
type DeviceMounter interface {
	// GetDeviceMountPath does no I/O.
	GetDeviceMountPath(spec *Spec) (string, error)
	// MountDevice mounts the device. It succeeds if the device is mounted
	// already.
	MountDevice(ctx context.Context, spec *Spec, devicePath, deviceMountPath string, args DeviceMounterArgs) error
}

// DeviceUnmounter undoes a DeviceMounter's work.
type DeviceUnmounter interface {
	// UnmountDevice unmounts the device and removes its mount point. It succeeds
	// if the device is not mounted.
	UnmountDevice(ctx context.Context, deviceMountPath string) error
}

// AsDeviceMountable returns p's [DeviceMountableVolumePlugin], if it is one.
func AsDeviceMountable(p VolumePlugin) (DeviceMountableVolumePlugin, bool) {
	c, ok := p.(DeviceMountableVolumePlugin)
	return c, ok
}

// AttachableVolumePlugin is implemented by plugins whose volumes are attached to
// a node before they are mounted there. Absent: volumes are mounted without
// attaching.
type AttachableVolumePlugin interface {
	DeviceMountableVolumePlugin
	NewAttacher() (Attacher, error)
	NewDetacher() (Detacher, error)
	// CanAttach reports whether this spec needs attaching. After an error
	// the caller takes it for one that does, until it asks again.
	CanAttach(ctx context.Context, spec *Spec) (bool, error)
}

// AttachmentChecker is implemented by plugins that can say why a volume is not attached.
// Absent: a volume waits until the node's status says that it is, and nothing more is known.
type AttachmentChecker interface {
	AttachableVolumePlugin
	// CheckAttachment returns the error of the last attempt to attach a volume; nil: there
	// is none. A node asks at growing pauses while it waits.
	CheckAttachment(ctx context.Context, spec *Spec) error
}

// AsAttachmentChecker returns p's [AttachmentChecker], if it is one.
func AsAttachmentChecker(p VolumePlugin) (AttachmentChecker, bool) {
	c, ok := p.(AttachmentChecker)
	return c, ok
}

// Attacher attaches volumes to nodes.
type Attacher interface {
	DeviceMounter
	// Attach attaches the volume and returns its device path on the node, if
	// known. It succeeds if the volume is attached already.
	Attach(ctx context.Context, spec *Spec, node types.NodeName) (devicePath string, err error)
	VolumesAreAttached(ctx context.Context, specs []*Spec, node types.NodeName) (map[*Spec]bool, error)
	// WaitForAttach waits on the node until the device exists, for at most
	// timeout. It returns the device's path.
	WaitForAttach(ctx context.Context, spec *Spec, devicePath string, pod *v1.Pod, timeout time.Duration) (string, error)
}

// Detacher detaches volumes from nodes.
type Detacher interface {
	DeviceUnmounter
	// Detach detaches the volume. It succeeds if the volume is detached already.
	Detach(ctx context.Context, volumeName string, node types.NodeName) error
}

// AsAttachable returns p's [AttachableVolumePlugin], if it is one.
func AsAttachable(p VolumePlugin) (AttachableVolumePlugin, bool) {
	c, ok := p.(AttachableVolumePlugin)
	return c, ok
}

// BlockVolumePlugin is implemented by plugins that can hand a raw block device to
// a pod. Absent: volumeMode Block is refused.
//
// The volume manager does the rest, as the kubelet does:
//
//   - It binds the device's node below the global map path.
//   - It keeps the device from being replaced.
//   - It makes the pod's link to the device.
type BlockVolumePlugin interface {
	VolumePlugin
	// NewBlockVolumeMapper and NewBlockVolumeUnmapper do no I/O. The unmapper
	// works from a record alone, so the pod may be gone.
	NewBlockVolumeMapper(spec *Spec, pod *v1.Pod) (BlockVolumeMapper, error)
	NewBlockVolumeUnmapper(volumeName string, podUID types.UID) (BlockVolumeUnmapper, error)
	// ConstructBlockVolumeSpec rebuilds a spec of volumeMode Block from the pod's
	// link at volumePath. It is called if there is no record.
	ConstructBlockVolumeSpec(ctx context.Context, podUID types.UID, volumeName, volumePath string) (*Spec, error)
}

// BlockVolume is a block volume of a pod at its place on disk. The methods that
// return paths do no I/O.
type BlockVolume interface {
	// GetGlobalMapPath returns a directory below plugins/. In it the device's
	// node is bound once for each pod, under the pod's UID. The directory is the
	// same for all pods of a volume and holds nothing else.
	GetGlobalMapPath(spec *Spec) (string, error)
	// GetPodDeviceMapPath returns the directory and the name of the pod's own
	// link.
	GetPodDeviceMapPath() (dir, name string)
	// GetStagingPath returns the path at which the plugin itself has mounted
	// something for the volume; empty: there is none. With it the manager knows
	// the owner of that mount.
	GetStagingPath() string
	MetricsProvider
}

// BlockVolumeMapper makes a device available to a pod. Its errors count as
// uncertain unless they carry the mark of [NothingDone].
type BlockVolumeMapper interface {
	BlockVolume
	// SetUpDevice prepares the device on the node, once for all pods, and returns
	// its staging path. It succeeds if the device is prepared already.
	SetUpDevice(ctx context.Context) (stagingPath string, err error)
	// MapPodDevice publishes the device to the pod and returns the device's path,
	// which may be a link to the device. An empty path stands for the path at
	// which the device was attached. MapPodDevice succeeds if the device is
	// published already.
	MapPodDevice(ctx context.Context) (publishPath string, err error)
}

// BlockVolumeUnmapper undoes a BlockVolumeMapper's work. Its methods succeed if
// there is nothing left to undo.
type BlockVolumeUnmapper interface {
	BlockVolume
	// UnmapPodDevice takes the device from the pod. The pod's link and bind are
	// gone by then.
	UnmapPodDevice(ctx context.Context) error
	// TearDownDevice undoes SetUpDevice when no pod has the device any more.
	// mapPath is the global map path, which was removed. devicePath is the path
	// at which the device was attached; empty: not known.
	TearDownDevice(ctx context.Context, mapPath, devicePath string) error
}

// AsBlock returns p's [BlockVolumePlugin], if it is one.
func AsBlock(p VolumePlugin) (BlockVolumePlugin, bool) {
	c, ok := p.(BlockVolumePlugin)
	return c, ok
}

// GeneralPlugin is implemented by plugins for a type of source of which other plugins may have
// some volumes, such as flexVolume with a driver of the user's own. Absent: two plugins that
// support one spec are an error.
type GeneralPlugin interface {
	VolumePlugin
	// IsGeneral reports whether another plugin that supports a spec takes precedence. The answer
	// never changes.
	IsGeneral() bool
}

// IsGeneral reports whether p yields to other plugins; see [GeneralPlugin].
func IsGeneral(p VolumePlugin) bool {
	c, ok := p.(GeneralPlugin)
	return ok && c.IsGeneral()
}
