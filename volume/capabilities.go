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

// SourceDescriber is implemented by plugins that can name the place of a volume's
// data for people, such as "10.0.0.1:/export". The text is short and holds no
// secrets. Absent: GetVolumeName is shown.
type SourceDescriber interface {
	VolumePlugin
	DescribeSource(*Spec) string
}

// DescribeSource names the place of the volume's data; see [SourceDescriber].
func DescribeSource(p VolumePlugin, spec *Spec) string {
	if c, ok := p.(SourceDescriber); ok {
		return c.DescribeSource(spec)
	}
	name, err := p.GetVolumeName(spec)
	if err != nil {
		return spec.Name()
	}
	return name
}

// PodCheckPlugin is implemented by plugins that read more of a pod than its
// volumes, such as annotations. Absent: nothing else can be wrong.
type PodCheckPlugin interface {
	VolumePlugin
	// CheckPod refuses a pod that asks the plugin for something it does not
	// understand, or for volumes that are not the plugin's. Its errors are
	// *[InvalidSpecError]s with the mark of [NothingDone].
	//
	//   - It does no I/O.
	//   - It is called for every pod, whatever volumes the pod has.
	//   - It counts for new pods only. Annotations change while a pod runs. So a
	//     mounter can meet annotations that it does not understand, too. It then
	//     leaves alone what it has mounted.
	CheckPod(*v1.Pod) error
}

// CheckPod returns the error of p's CheckPod. It is nil for plugins that are no
// [PodCheckPlugin].
func CheckPod(p VolumePlugin, pod *v1.Pod) error {
	if c, ok := p.(PodCheckPlugin); ok {
		return c.CheckPod(pod)
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

// SourceComparer is implemented by plugins whose volumes can lie within one
// another, as directories do. Absent: two volumes share data if GetVolumeName is
// the same for both.
type SourceComparer interface {
	VolumePlugin
	// SharesData reports whether the volumes of a and b have files in common. The
	// plugin supports both specs. SharesData does no I/O, so two names of one
	// server look like two servers. It fails only if it cannot compare these two.
	// An invalid source of one volume must not make the comparison of others
	// fail.
	SharesData(a, b *Spec) (bool, error)
}

// SharesData reports whether two volumes have files in common; see
// [SourceComparer].
func SharesData(p VolumePlugin, a, b *Spec) (bool, error) {
	if c, ok := p.(SourceComparer); ok {
		return c.SharesData(a, b)
	}
	nameOfA, err := p.GetVolumeName(a)
	if err != nil {
		return false, err
	}
	nameOfB, err := p.GetVolumeName(b)
	return err == nil && nameOfA == nameOfB, err
}

// SourcePlacer is implemented by a [SourceComparer] that can name the place of a
// volume's data. A search for the volumes that share data with one volume then
// need not compare it with every other. Absent: it is compared with each.
type SourcePlacer interface {
	SourceComparer
	// SourcePlace returns the storage that holds the data, such as a server, and
	// the clean path of the data on it. Volumes can share data only if both rules
	// hold:
	//
	//   - on is the same.
	//   - The paths are the same, or one lies below the other.
	//
	// SharesData decides even then. SourcePlace fails for a source that the
	// plugin refuses; SharesData compares such a source with each volume.
	// SourcePlace does no I/O.
	SourcePlace(*Spec) (on, path string, err error)
}

// SourcePlace returns the place of a volume's data; see [SourcePlacer].
func SourcePlace(p VolumePlugin, spec *Spec) (on, path string, err error) {
	switch c := p.(type) {
	case SourcePlacer:
		return c.SourcePlace(spec)
	case SourceComparer:
		return "", "/", nil
	}
	name, err := p.GetVolumeName(spec)
	return name, "/", err
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
