package devices

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager/internal/blockmap"
)

// Use is what a volume needs of its node besides the pod's own mount. It never changes.
type Use struct {
	// Key is the device, and its place.
	Key Key

	spec   *volume.Spec
	plugin volume.VolumePlugin
	mounts volume.DeviceMountableVolumePlugin // nil for a block volume
	block  volume.BlockVolumePlugin           // nil for a file system
	attach volume.AttachableVolumePlugin      // nil where nothing is attached

	// Unsure is why it is not known whether the volume is attached; then it counts as
	// such.
	Unsure error
}

// Key is one place where a device is mounted, or that a block volume's device is bound below
// for its pods. Two PersistentVolumes may name one volume and still have a place each.
type Key struct {
	Name v1.UniqueVolumeName
	Path string // empty where nothing is done once per node
}

// Attaching is [Of], and whether the volume must be attached, for which it asks the plugin.
func Attaching(ctx context.Context, plugin volume.VolumePlugin, spec *volume.Spec, podUID types.UID) (*Use, error) {
	use, err := Of(plugin, spec, podUID)
	attachable, ok := volume.AsAttachable(plugin)
	if use == nil || !ok {
		return use, err
	}
	attaches, unsure := attachable.CanAttach(ctx, spec)
	switch {
	case unsure != nil:
		use.attach, use.Unsure = attachable, use.Failed("CanAttach", spec, volume.NothingDone(unsure))
	case attaches:
		use.attach = attachable
	case err == nil && !use.HasPlace():
		return nil, nil
	}
	return use, err
}

// Of finds out what a spec needs, without I/O; nil: nothing. What [Attaching] adds is left
// out. With an error it says what the spec may need, as far as that can be said.
func Of(plugin volume.VolumePlugin, spec *volume.Spec, podUID types.UID) (*Use, error) {
	mountable, mounts := volume.AsDeviceMountable(plugin)
	if !mounts && !spec.IsBlock() {
		return nil, nil
	}
	name, err := plugin.GetVolumeName(spec)
	if err != nil {
		return nil, volume.NothingDone(err)
	}
	use := &Use{spec: spec, plugin: plugin, Key: Key{Name: v1.UniqueVolumeName(plugin.GetPluginName() + "/" + name)}}
	if spec.IsBlock() {
		return use, use.ofBlock(spec, podUID)
	}
	use.mounts = mountable
	return use.ofMount(spec)
}

// BlockPlugin returns the part of a plugin that has devices.
func BlockPlugin(plugin volume.VolumePlugin, spec *volume.Spec) (volume.BlockVolumePlugin, error) {
	able, ok := volume.AsBlock(plugin)
	if !ok {
		return nil, &volume.UnsupportedError{Volume: spec.Name(), Type: "volumeMode Block",
			Reason: plugin.GetPluginName() + " has no devices", Replacement: "use volumeMode Filesystem"}
	}
	return able, nil
}

// ofBlock adds what a block volume needs: its device is set up once per node.
func (u *Use) ofBlock(spec *volume.Spec, podUID types.UID) (err error) {
	if u.block, err = BlockPlugin(u.plugin, spec); err != nil {
		return volume.NothingDone(err)
	}
	unmapper, err := u.block.NewBlockVolumeUnmapper(spec.Name(), podUID) // it needs no pod, as a mapper does
	if err != nil {
		return u.Failed("NewBlockVolumeUnmapper", spec, volume.NothingDone(err))
	}
	if u.Key.Path, err = unmapper.GetGlobalMapPath(spec); err != nil {
		return u.Failed("GetGlobalMapPath", spec, volume.NothingDone(err))
	}
	return nil
}

// ofMount adds what a file system needs, and returns nil where that is nothing, unless it
// may have to be attached.
func (u *Use) ofMount(spec *volume.Spec) (_ *Use, err error) {
	mounts, err := u.mounts.CanDeviceMount(spec)
	switch {
	case err != nil:
		return u, u.Failed("CanDeviceMount", spec, volume.NothingDone(err))
	case mounts:
		u.Key.Path, err = u.mountPath(spec)
		return u, err
	}
	if _, attachable := volume.AsAttachable(u.plugin); !attachable {
		return nil, nil
	}
	return u, nil
}

func (u *Use) mountPath(spec *volume.Spec) (string, error) {
	mounter, err := u.mounts.NewDeviceMounter()
	if err != nil {
		return "", u.Failed("NewDeviceMounter", spec, volume.NothingDone(err))
	}
	path, err := mounter.GetDeviceMountPath(spec)
	if err != nil {
		return "", u.Failed("GetDeviceMountPath", spec, volume.NothingDone(err))
	}
	return path, nil
}

// Failed says which of the plugin's calls has failed.
func (u *Use) Failed(op string, spec *volume.Spec, err error) error {
	return (&volume.Error{Op: op, Plugin: u.plugin.GetPluginName(), Volume: spec.Name()}).About(err)
}

// HasPlace reports whether something is done once per node; a nil Use needs nothing.
func (u *Use) HasPlace() bool { return u != nil && u.Key.Path != "" }

// attachable is the name of the volume that must be attached; empty: nothing.
func (u *Use) attachable() v1.UniqueVolumeName {
	if u == nil || u.attach == nil {
		return ""
	}
	return u.Key.Name
}

// Bind is where the device of a block volume is bound for a pod.
func (u *Use) Bind(podUID types.UID) string { return blockmap.Bind(u.Key.Path, podUID) }

// Places are where something may be mounted or bound for the volume besides its pod's own
// mount; none for a nil Use.
func (u *Use) Places(spec *volume.Spec, podUID types.UID) ([]string, error) {
	switch {
	case !u.HasPlace():
		return nil, nil
	case u.block == nil:
		return []string{u.Key.Path}, nil
	}
	places := []string{u.Bind(podUID)}
	unmapper, err := u.block.NewBlockVolumeUnmapper(spec.Name(), podUID)
	if err != nil {
		return places, err
	}
	if staged := unmapper.GetStagingPath(); staged != "" {
		places = append(places, staged)
	}
	return places, nil
}

// unmount unmounts the device of a file system.
func (u *Use) unmount(ctx context.Context, spec *volume.Spec) error {
	unmounter, err := u.mounts.NewDeviceUnmounter()
	if err != nil {
		return u.Failed("NewDeviceUnmounter", spec, volume.NothingDone(err))
	}
	if err := unmounter.UnmountDevice(ctx, u.Key.Path); err != nil {
		return u.Failed("UnmountDevice", spec, err)
	}
	return nil
}

// tearDown undoes a mapper's SetUpDevice. First it removes the directory of the pods' binds:
// where it is not empty, a pod without a record has the device, and it is left alone.
func (u *Use) tearDown(ctx context.Context, spec *volume.Spec, podUID types.UID, attachedAt string) error {
	unmapper, err := u.block.NewBlockVolumeUnmapper(spec.Name(), podUID)
	if err != nil {
		return u.Failed("NewBlockVolumeUnmapper", spec, volume.NothingDone(err))
	}
	if err := blockmap.RemoveGlobal(u.Key.Path); err != nil {
		return u.Failed("TearDownDevice", spec, err)
	}
	if err := unmapper.TearDownDevice(ctx, u.Key.Path, attachedAt); err != nil {
		return u.Failed("TearDownDevice", spec, err)
	}
	return nil
}

// busy says that another operation has the device's lock.
func (u *Use) busy(op string, spec *volume.Spec, err error) error {
	return u.Failed(op, spec, volume.NothingDone(fmt.Errorf("another operation on the device of %s has not ended: %w", u.Key.Name, err)))
}
