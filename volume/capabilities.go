package volume

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// PersistentVolumePlugin is implemented by plugins whose source can be given
// by a PersistentVolume. Absent: inline only.
type PersistentVolumePlugin interface {
	VolumePlugin
	// GetAccessModes returns what the kind of storage can do at most.
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
	// DependsOn returns the objects whose change calls for another SetUp of
	// the pod's volume; a reference without a name is to all objects of its kind.
	// It does no I/O and tolerates objects that do not exist.
	DependsOn(*Spec, *v1.Pod) []ObjectRef
}

// DependsOn returns what the volume depends on; nothing for plugins that are
// no [DependentVolumePlugin].
func DependsOn(p VolumePlugin, spec *Spec, pod *v1.Pod) []ObjectRef {
	if c, ok := p.(DependentVolumePlugin); ok {
		return c.DependsOn(spec, pod)
	}
	return nil
}

// SourceDescriber is implemented by plugins that can say in one short word
// where a volume's data comes from, without secrets, for people to read:
// "10.0.0.1:/export". Absent: GetVolumeName is shown.
type SourceDescriber interface {
	VolumePlugin
	DescribeSource(*Spec) string
}

// DescribeSource says where the volume's data comes from; see
// [SourceDescriber].
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
	// CheckPod refuses a pod that asks the plugin for what nobody could
	// understand, or for volumes that are not the plugin's, with
	// *[InvalidSpecError]s that are marked by [NothingDone]. It does no I/O, and is
	// asked for every pod, whatever volumes that has. It counts for pods that are
	// new: annotations change while a pod runs, so that a mounter meets those that
	// nobody understands too, and leaves alone what it has mounted.
	CheckPod(*v1.Pod) error
}

// CheckPod asks p whether it understands the pod; nil for plugins that are no
// [PodCheckPlugin].
func CheckPod(p VolumePlugin, pod *v1.Pod) error {
	if c, ok := p.(PodCheckPlugin); ok {
		return c.CheckPod(pod)
	}
	return nil
}

// WorkMountPlugin is implemented by plugins that mount something for themselves
// for a while, which is no volume: an export in which they make a directory.
// Absent: a plugin's only mounts are volumes and devices.
type WorkMountPlugin interface {
	VolumePlugin
	// GetWorkDir returns the directory, strictly below that of the plugin, in
	// which these mounts have one directory each. It does no I/O.
	GetWorkDir() string
	// SweepWork unmounts and removes what a crash left there, and leaves alone
	// what this plugin works with at present. It may wait for a server that does
	// not answer, and is idempotent.
	SweepWork(context.Context) error
}

// AsWorkMount returns p's [WorkMountPlugin], if it is one.
func AsWorkMount(p VolumePlugin) (WorkMountPlugin, bool) {
	c, ok := p.(WorkMountPlugin)
	return c, ok
}

// SourceComparer is implemented by plugins whose volumes can lie within one
// another, as directories do. Absent: volumes share data if GetVolumeName is
// the same for both.
type SourceComparer interface {
	VolumePlugin
	// SharesData reports whether files of one of the specs' volumes are also
	// the other's. Both are specs that the plugin supports. No I/O: two names
	// of one server look like two servers. It fails only where that cannot be told
	// of these two: an odd source of one says nothing about all others.
	SharesData(a, b *Spec) (bool, error)
}

// SharesData reports whether files of one volume are also the other's; see
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

// SourcePlacer is implemented by a [SourceComparer] that can say where a volume's
// data is, so that who is to find the volumes that share data with one among many
// need not compare it with each. Absent: each is compared.
type SourcePlacer interface {
	SourceComparer
	// SourcePlace returns what the data is on, as a server, and the clean path at
	// which it is there. Volumes share data only if they are on the same and one's
	// path is the other's or lies below it; even then SharesData decides. It fails
	// for a source that the plugin refuses, which SharesData compares with each
	// volume, and does no I/O.
	SourcePlace(*Spec) (on, path string, err error)
}

// SourcePlace returns where a volume's data is; see [SourcePlacer].
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
