package flexvolume

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/diskmount"
	"github.com/podvol/podvol/volume/plugins/flexvolume/internal/driver"
)

// CanDeviceMount is true: whether its driver attaches, only the driver knows. For one that does
// not, MountDevice does nothing.
func (p *plugin) CanDeviceMount(spec *volume.Spec) (bool, error) {
	_, err := p.checked(spec)
	return err == nil, err
}

func (p *plugin) NewDeviceMounter() (volume.DeviceMounter, error) { return &device{p}, nil }

func (p *plugin) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return &device{p}, nil }

// GetDeviceMountRefs implements [volume.DeviceMountableVolumePlugin].
func (p *plugin) GetDeviceMountRefs(deviceMountPath string) ([]string, error) {
	return diskmount.Refs(p.Host.GetMounter(), deviceMountPath)
}

// device mounts the devices of drivers that attach.
type device struct{ plugin *plugin }

func (d *device) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	s, err := d.plugin.checked(spec)
	if err != nil {
		return "", err
	}
	return d.plugin.devicePlace(s).dir, nil
}

// MountDevice has a driver that attaches mount the volume once for the node. Of a driver without
// mountdevice, the node mounts the device, if there is one, after it has given it a file system
// if it is blank. Of a driver without both, it only
// remembers that the volume is used, until UnmountDevice.
func (d *device) MountDevice(ctx context.Context, spec *volume.Spec, devicePath, deviceMountPath string, args volume.DeviceMounterArgs) error {
	s, err := d.plugin.checked(spec)
	if err == nil {
		var at place
		if at, err = d.plugin.placeOf(deviceMountPath); err == nil {
			err = d.plugin.mountDevice(ctx, s, at, devicePath, args)
		}
	}
	return failed("MountDevice", spec.Name(), err)
}

func (p *plugin) mountDevice(ctx context.Context, s *source, at place, devicePath string, args volume.DeviceMounterArgs) error {
	unlock, err := p.places.Lock(ctx, at.dir)
	if err != nil {
		return volume.NothingDone(err)
	}
	defer unlock()
	old, mounted, err := p.isMounted(at)
	if err != nil {
		return volume.NothingDone(err)
	}
	if mounted {
		return s.checkShared(&old)
	}
	d, err := p.drivers.Open(ctx, s.Driver)
	if err != nil || !d.Capabilities.Attach {
		return err
	}
	r := s.record(d)
	err = p.mount(ctx, at, deviceVerbs, r, func() error { return p.stage(ctx, s, at, d, r, devicePath, args) })
	if errors.Is(err, errNothingToMount) {
		return nil // the record stays until UnmountDevice: pods use what is attached
	}
	return err
}

// errNothingToMount says that a driver mounts no devices.
var errNothingToMount = errors.New("the driver mounts no devices")

// stage attaches the volume, where nobody else does, and mounts its device.
func (p *plugin) stage(ctx context.Context, s *source, at place, d *driver.Driver, r *record, devicePath string, args volume.DeviceMounterArgs) error {
	options, err := s.options(nil)
	if err == nil && !p.attachesElsewhere() {
		devicePath, err = p.attachHere(ctx, s, at, d, r)
	}
	if err != nil {
		return err
	}
	_, err = d.Call(ctx, s.call(deviceVerbs.mount, at.dir, at.dir, devicePath, options))
	switch {
	case !errors.Is(err, driver.ErrNotSupported):
		return err
	case devicePath == "":
		return errNothingToMount
	case !isDevice(devicePath):
		return &volume.Failure{Cause: ErrDriver, Subject: d.Name, What: fmt.Sprintf("driver %s does not mount, and has attached the volume as %q, which is no path below /dev", d.Name, devicePath)}
	}
	request := mount.Request{Source: devicePath, Target: at.dir, FSType: s.FSType}
	if request.FSType == "" {
		request.FSType = format.DefaultFSType
	}
	if s.readOnly {
		request.Options = []string{"ro"}
	}
	return p.disks.Mount(ctx, p.Host.GetMounter(), request, args.SELinuxLabel, args.Progress)
}

// isDevice reports whether a driver's text is the path of a device that may be formatted.
func isDevice(path string) bool {
	return filepath.Clean(path) == path && strings.HasPrefix(path, "/dev/")
}

// UnmountDevice has the driver unmount the device, and detaches it if this node has attached it
// in MountDevice. It succeeds if nothing is there. A device that a pod has stays: the error matches
// [volume.ErrInUse].
func (d *device) UnmountDevice(ctx context.Context, deviceMountPath string) error {
	return failed("UnmountDevice", filepath.Base(filepath.Dir(deviceMountPath)), d.plugin.unmountDevice(ctx, deviceMountPath))
}

func (p *plugin) unmountDevice(ctx context.Context, path string) error {
	at, err := p.placeOf(path)
	if err != nil {
		return err
	}
	unlock, err := p.places.Lock(ctx, at.dir)
	if err != nil {
		return volume.NothingDone(err)
	}
	defer unlock()
	if err := p.checkUnused(at); err != nil {
		return volume.NothingDone(err)
	}
	return p.tearDown(ctx, at, deviceVerbs)
}

// checkUnused refuses while the device's file system is mounted elsewhere, unless that is another
// volume of the same device.
func (p *plugin) checkUnused(at place) error {
	refs, err := p.GetDeviceMountRefs(at.dir)
	if err != nil {
		return err
	}
	own, _, err := at.read()
	if err != nil {
		return err
	}
	for _, ref := range refs {
		if _, err := p.placeOf(ref); err == nil {
			continue
		}
		if is, err := p.isAnothers(ref, own.Name); err != nil {
			return err
		} else if is {
			continue
		}
		return fmt.Errorf("the volume is mounted at %s, too: %w", ref, volume.ErrInUse)
	}
	return nil
}

// isAnothers reports whether a pod's mount is of another volume, or is gone by now.
func (p *plugin) isAnothers(ref, name string) (bool, error) {
	at, err := p.placeAt(ref, filepath.Base(ref))
	if err != nil {
		return false, nil // it is no pod's
	}
	r, known, err := at.read()
	if err != nil || known {
		return r.Name != name, err
	}
	mounted, err := p.mounted(at)
	return !mounted, err
}
