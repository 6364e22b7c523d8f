package local

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/diskmount"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// CanDeviceMount reports whether the volume is a file system. Whether its path is
// a directory or a device with one cannot be told without I/O, so a directory
// has a device mount too, which does nothing.
func (p *plugin) CanDeviceMount(spec *volume.Spec) (bool, error) {
	if _, err := p.Source(spec); err != nil {
		return false, err
	}
	return !spec.IsBlock(), nil
}

func (p *plugin) NewDeviceMounter() (volume.DeviceMounter, error) { return &device{p}, nil }

func (p *plugin) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return &device{p}, nil }

// GetDeviceMountRefs implements [volume.DeviceMountableVolumePlugin]. Of a
// directory there are none.
func (p *plugin) GetDeviceMountRefs(deviceMountPath string) ([]string, error) {
	return diskmount.Refs(p.Host.GetMounter(), deviceMountPath)
}

// deviceMountPath is the kubelet's place for a volume whose path is a device.
func (p *plugin) deviceMountPath(volumeName string) string {
	return filepath.Join(p.Host.GetPluginDir(PluginName), "mounts", volumeName)
}

// device mounts the file systems of volumes whose path is a block device.
type device struct{ plugin *plugin }

func (d *device) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	if _, err := d.plugin.Source(spec); err != nil {
		return "", err
	}
	if err := volume.CheckPathSegment("volume name", spec.Name()); err != nil {
		return "", err
	}
	return d.plugin.deviceMountPath(spec.Name()), nil
}

// MountDevice mounts the file system of a device; a blank one is given one
// before, of type local.fsType, as package format says. For a directory nothing
// is done. It is mounted read-only where the PersistentVolume offers nothing
// else: a single pod's wish is for its own bind.
func (d *device) MountDevice(ctx context.Context, spec *volume.Spec, _, deviceMountPath string, args volume.DeviceMounterArgs) error {
	return d.failed("MountDevice", spec, d.mount(ctx, spec, deviceMountPath, args))
}

func (d *device) mount(ctx context.Context, spec *volume.Spec, path string, args volume.DeviceMounterArgs) error {
	source, err := d.plugin.Source(spec)
	if err != nil {
		return err
	}
	mounter := d.plugin.Host.GetMounter()
	if mounted, err := diskmount.IsMounted(mounter, path); err != nil || mounted {
		return err
	}
	isDevice, err := d.plugin.isDevice(ctx, source.Path)
	if err != nil || !isDevice {
		return volume.NothingDone(err)
	}
	if err := d.plugin.checkDisk(ctx, spec.PersistentVolume, true); err != nil {
		return volume.NothingDone(err)
	}
	writable := *spec
	writable.ReadOnly = false
	request := mount.Request{Source: source.Path, Target: path}
	if request.Options, err = pluginbase.Options(spec, pluginbase.ReadOnly(&writable)); err != nil {
		return err
	}
	if source.FSType != nil {
		request.FSType = *source.FSType
	}
	if _, err := podmount.MakeDir(path, 0o750); err != nil {
		return volume.NothingDone(err)
	}
	if err := d.plugin.disks.Mount(ctx, mounter, request, "", args.Progress); err != nil {
		if left := podmount.Undo(ctx, mounter, path); left != nil {
			return errors.Join(err, left)
		}
		return diskmount.Certain(err)
	}
	return nil
}

// UnmountDevice never forces and never detaches: a device that is out of sight
// would still be in use.
func (d *device) UnmountDevice(ctx context.Context, deviceMountPath string) error {
	err := podmount.TearDown(ctx, d.plugin.Host.GetMounter(), deviceMountPath, mount.UnmountOptions{})
	if err != nil {
		return &volume.Error{Op: "UnmountDevice", Plugin: PluginName, Volume: filepath.Base(deviceMountPath), Err: err}
	}
	return nil
}

func (d *device) failed(op string, spec *volume.Spec, err error) error {
	if err == nil {
		return nil
	}
	return &volume.Error{Op: op, Plugin: PluginName, Volume: spec.Name(), Err: err}
}

// isDevice reports whether a path is a block device.
func (p *plugin) isDevice(ctx context.Context, path string) (bool, error) {
	info, err := p.stat(ctx, path)
	return err == nil && info.Mode().Type() == fs.ModeDevice, err
}
