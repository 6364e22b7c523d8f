package volume

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// DeviceMounterArgs are the wishes for a device that is mounted once per node.
type DeviceMounterArgs struct {
	// FsGroup is for file systems that take a group as a mount option; the
	// files are given to it where the device is bound into a pod ([SetOwnership]).
	FsGroup      *int64
	SELinuxLabel string
	// Progress is told how far a mount is that takes long, as [MounterArgs]
	// says; nil: nobody wants to know.
	Progress func(Progress)
}

// DeviceMountableVolumePlugin is implemented by plugins that mount a device
// once on the node and bind it into each pod. Absent: each pod's SetUp is all.
type DeviceMountableVolumePlugin interface {
	VolumePlugin
	NewDeviceMounter() (DeviceMounter, error)
	NewDeviceUnmounter() (DeviceUnmounter, error)
	// GetDeviceMountRefs returns the other mount points of what is mounted at
	// deviceMountPath, from the mount table.
	GetDeviceMountRefs(deviceMountPath string) ([]string, error)
	// CanDeviceMount reports whether this spec needs a device mount.
	CanDeviceMount(spec *Spec) (bool, error)
}

// DeviceMounter mounts a device at its place below plugins/.
type DeviceMounter interface {
	// GetDeviceMountPath does no I/O.
	GetDeviceMountPath(spec *Spec) (string, error)
	// MountDevice mounts the device; mounted already is success.
	MountDevice(ctx context.Context, spec *Spec, devicePath, deviceMountPath string, args DeviceMounterArgs) error
}

// DeviceUnmounter undoes a DeviceMounter's work.
type DeviceUnmounter interface {
	// UnmountDevice unmounts the device and removes its mount point; what is
	// not mounted is success.
	UnmountDevice(ctx context.Context, deviceMountPath string) error
}

// AsDeviceMountable returns p's [DeviceMountableVolumePlugin], if it is one.
func AsDeviceMountable(p VolumePlugin) (DeviceMountableVolumePlugin, bool) {
	c, ok := p.(DeviceMountableVolumePlugin)
	return c, ok
}

// AttachableVolumePlugin is implemented by plugins whose volumes are attached
// to a node before they are mounted there. Absent: volumes are mounted without.
type AttachableVolumePlugin interface {
	DeviceMountableVolumePlugin
	NewAttacher() (Attacher, error)
	NewDetacher() (Detacher, error)
	// CanAttach reports whether this spec needs attaching.
	CanAttach(spec *Spec) (bool, error)
}

// Attacher attaches volumes to nodes.
type Attacher interface {
	DeviceMounter
	// Attach attaches the volume and returns its device path there, if known;
	// attached already is success.
	Attach(ctx context.Context, spec *Spec, node types.NodeName) (devicePath string, err error)
	VolumesAreAttached(ctx context.Context, specs []*Spec, node types.NodeName) (map[*Spec]bool, error)
	// WaitForAttach waits on the node until the device is there, at most
	// timeout, and returns its path.
	WaitForAttach(ctx context.Context, spec *Spec, devicePath string, pod *v1.Pod, timeout time.Duration) (string, error)
}

// Detacher detaches volumes from nodes.
type Detacher interface {
	DeviceUnmounter
	// Detach detaches the volume; detached already is success.
	Detach(ctx context.Context, volumeName string, node types.NodeName) error
}

// AsAttachable returns p's [AttachableVolumePlugin], if it is one.
func AsAttachable(p VolumePlugin) (AttachableVolumePlugin, bool) {
	c, ok := p.(AttachableVolumePlugin)
	return c, ok
}

// BlockVolumePlugin is implemented by plugins that can hand a raw block device
// to a pod. Absent: volumeMode Block is refused.
//
// The manager does the rest for each of them, as the kubelet does: it binds the
// device's node below the global map path, keeps it from being replaced, and
// makes the pod's link to it.
type BlockVolumePlugin interface {
	VolumePlugin
	// NewBlockVolumeMapper and NewBlockVolumeUnmapper do no I/O. The latter has
	// to do with what a record says, also of a pod that is gone.
	NewBlockVolumeMapper(spec *Spec, pod *v1.Pod) (BlockVolumeMapper, error)
	NewBlockVolumeUnmapper(volumeName string, podUID types.UID) (BlockVolumeUnmapper, error)
	// ConstructBlockVolumeSpec rebuilds a spec of volumeMode Block from the
	// pod's link at volumePath, where there is no record.
	ConstructBlockVolumeSpec(ctx context.Context, podUID types.UID, volumeName, volumePath string) (*Spec, error)
}

// BlockVolume is a block volume of a pod at its place on disk. The paths are
// asked for without I/O.
type BlockVolume interface {
	// GetGlobalMapPath returns the directory, below plugins/, in which the
	// device's node is bound for each pod, by the pod's UID. It is the same for
	// all pods of a volume, and nothing else is in it.
	GetGlobalMapPath(spec *Spec) (string, error)
	// GetPodDeviceMapPath returns directory and name of the pod's own link.
	GetPodDeviceMapPath() (dir, name string)
	// GetStagingPath returns where the plugin itself has mounted something for
	// the volume, so that it is known whose that is; empty: nowhere.
	GetStagingPath() string
	MetricsProvider
}

// BlockVolumeMapper makes a device available to a pod. Errors count as
// uncertain unless they say that nothing was done ([NothingDone]).
type BlockVolumeMapper interface {
	BlockVolume
	// SetUpDevice prepares the device on the node, once for all pods, and
	// returns its staging path; prepared already is success.
	SetUpDevice(ctx context.Context) (stagingPath string, err error)
	// MapPodDevice publishes it to the pod and returns the device's path, which
	// may be a link to it; published already is success. An empty path stands
	// for the path that the device was attached at.
	MapPodDevice(ctx context.Context) (publishPath string, err error)
}

// BlockVolumeUnmapper undoes a BlockVolumeMapper's work. What is undone already
// is success.
type BlockVolumeUnmapper interface {
	BlockVolume
	// UnmapPodDevice takes the device from the pod; link and bind are gone.
	UnmapPodDevice(ctx context.Context) error
	// TearDownDevice undoes SetUpDevice when no pod has the device any more.
	// mapPath is the global map path, which was removed; devicePath is where the
	// device was attached, empty where that is not known.
	TearDownDevice(ctx context.Context, mapPath, devicePath string) error
}

// AsBlock returns p's [BlockVolumePlugin], if it is one.
func AsBlock(p VolumePlugin) (BlockVolumePlugin, bool) {
	c, ok := p.(BlockVolumePlugin)
	return c, ok
}
