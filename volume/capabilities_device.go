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
type BlockVolumePlugin interface {
	VolumePlugin
	NewBlockVolumeMapper(spec *Spec, pod *v1.Pod) (BlockVolumeMapper, error)
	NewBlockVolumeUnmapper(volumeName string, podUID types.UID) (BlockVolumeUnmapper, error)
	ConstructBlockVolumeSpec(ctx context.Context, podUID types.UID, volumeName, volumePath string) (*Spec, error)
}

// BlockVolume is a block volume of a pod at its place on disk.
type BlockVolume interface {
	// GetGlobalMapPath returns the directory of the device's links, one a pod.
	GetGlobalMapPath(spec *Spec) (string, error)
	// GetPodDeviceMapPath returns directory and name of the pod's own link.
	GetPodDeviceMapPath() (dir, name string)
	MetricsProvider
}

// BlockVolumeMapper makes a device available to a pod.
type BlockVolumeMapper interface {
	BlockVolume
	GetStagingPath() string
	// SetUpDevice prepares the device on the node and returns its staging path.
	SetUpDevice(ctx context.Context) (stagingPath string, err error)
	// MapPodDevice publishes it to the pod and returns the path to link to.
	MapPodDevice(ctx context.Context) (publishPath string, err error)
}

// BlockVolumeUnmapper undoes a BlockVolumeMapper's work.
type BlockVolumeUnmapper interface {
	BlockVolume
	TearDownDevice(ctx context.Context, mapPath, devicePath string) error
	UnmapPodDevice(ctx context.Context) error
}

// AsBlock returns p's [BlockVolumePlugin], if it is one.
func AsBlock(p VolumePlugin) (BlockVolumePlugin, bool) {
	c, ok := p.(BlockVolumePlugin)
	return c, ok
}
