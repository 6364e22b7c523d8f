package volume

import (
	"context"

	v1 "k8s.io/api/core/v1"
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
