package volumemanager

import (
	"context"
	"fmt"
	"time"

	"github.com/podvol/podvol/volume"
)

// attachPatience is how long a reported device may take to appear, within what
// the attempt has left: the kubelet's.
const attachPatience = 10 * time.Minute

// stage makes sure that the device of a set-up, whose record is on disk, is
// there and mounted. Waiting for others that work on the device ends with ctx.
func (m *Manager) stage(ctx context.Context, u *setUp) error {
	m.keep(u)
	// Nobody takes from a holder what is mounted, so it needs no lock to see it.
	if there, err := m.staged(u); err != nil || there {
		return err
	}
	unlock, err := m.lockDevice(ctx, u.device, u.record.Spec(), "MountDevice")
	if err != nil {
		return err
	}
	defer unlock()
	there, err := m.staged(u)
	if err != nil || there {
		return err
	}
	if err := m.relabel(ctx, u); err != nil {
		return err
	}
	devicePath, err := m.waitForAttach(ctx, u)
	if err != nil || u.device.device.path == "" {
		return err
	}
	if u.mapping != nil {
		return m.setUpDevice(ctx, u, devicePath)
	}
	return m.mountDevice(ctx, u, devicePath)
}

func (m *Manager) keep(u *setUp) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u.device.device.path != "" {
		m.hold(u.of, u.device.device)
	}
}

func (m *Manager) lockDevice(ctx context.Context, use *deviceUse, spec *volume.Spec, op string) (unlock func(), err error) {
	unlock, err = m.deviceLocks.Lock(ctx, use.device.name)
	if err != nil {
		return nil, use.failed(op, spec, volume.NothingDone(fmt.Errorf("another operation on the device of %s has not ended: %w", use.device.name, err)))
	}
	return unlock, nil
}

// staged reports whether nothing is left to be done about the device. What
// must be attached first and is not is an *[AttachmentError].
func (m *Manager) staged(u *setUp) (bool, error) {
	onTable, err := m.isMountPoint(u.device.device.path)
	if err != nil {
		return false, volume.NothingDone(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.conflict(u); err != nil {
		return false, err
	}
	if u.device.device.path == "" {
		if u.of.state == StateMounted {
			return true, nil
		}
	} else if d := m.devices[u.device.device]; d.mounted && !d.mislabelled(u) && (onTable || !d.mountPoint) {
		return true, nil
	}
	return false, volume.NothingDone(asError(u.of.awaits()))
}

// waitForAttach waits until the device has appeared, and returns its path;
// empty where nothing is attached.
func (m *Manager) waitForAttach(ctx context.Context, u *setUp) (string, error) {
	if u.device.attach == nil {
		return "", nil
	}
	spec := u.record.Spec()
	attacher, err := u.device.attach.NewAttacher()
	if err != nil {
		return "", u.device.failed("NewAttacher", spec, volume.NothingDone(err))
	}
	m.mu.Lock()
	reported := m.attached[u.device.device.name]
	m.mu.Unlock()
	devicePath, err := attacher.WaitForAttach(ctx, spec, reported, u.pod, attachPatience)
	if err != nil { // and nothing is mounted
		return "", u.device.failed("WaitForAttach", spec, volume.NothingDone(err))
	}
	return devicePath, nil
}

func (m *Manager) mountDevice(ctx context.Context, u *setUp, devicePath string) error {
	spec, key := u.record.Spec(), u.device.device
	mounter, err := u.device.mounts.NewDeviceMounter()
	if err != nil {
		return u.device.failed("NewDeviceMounter", spec, volume.NothingDone(err))
	}
	label := u.record.SELinuxLabel
	before := m.setDevice(key, deviceState{touched: true, label: label})
	args := u.mounterArgs()
	deviceArgs := volume.DeviceMounterArgs{FsGroup: args.FsGroup, SELinuxLabel: args.SELinuxLabel, Progress: args.Progress}
	if err := mounter.MountDevice(ctx, spec, devicePath, key.path, deviceArgs); err != nil {
		if !volume.IsUncertain(err) {
			m.setDevice(key, before)
		}
		return u.device.failed("MountDevice", spec, err)
	}
	after := deviceState{touched: true, mounted: true, label: label}
	if after.mountPoint, err = m.isMountPoint(key.path); err != nil {
		return u.device.failed("MountDevice", spec, err)
	}
	m.setDevice(key, after)
	return nil
}

// setDevice notes what became of a device. The caller holds the device's lock
// and has a volume among the holders.
func (m *Manager) setDevice(key deviceKey, is deviceState) (was deviceState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.devices[key]
	was, d.deviceState = d.deviceState, is
	return was
}

// unstage lets go of the device of a volume whose own mount is gone, and
// unmounts it if nobody else has it. Only for that is it waited for what others
// do with the device.
func (m *Manager) unstage(ctx context.Context, s *podVolume, was actualVolume, plugin volume.VolumePlugin) error {
	spec := was.record.Spec()
	use, err := m.deviceOfActual(ctx, s, was, plugin)
	if err != nil || use == nil || use.device.path == "" {
		return err
	}
	if m.letGoOf(s, use.device) {
		return nil
	}
	if err := m.hidden(was.key.Plugin); err != nil {
		return use.failed("UnmountDevice", spec, fmt.Errorf("its device stays, since a volume of another pod may use it: %w", err))
	}
	unlock, err := m.lockDevice(ctx, use, spec, "UnmountDevice")
	if err != nil {
		return err
	}
	defer unlock()
	if !m.mustUnmount(s, use.device) {
		return nil // another one came meanwhile
	}
	if use.block != nil {
		err = m.tearDownDevice(ctx, use, spec, was.key.PodUID)
	} else {
		err = unmountDevice(ctx, use, spec)
	}
	if err != nil {
		return err
	}
	m.setDevice(use.device, deviceState{})
	m.letGoOf(s, use.device)
	return nil
}

func unmountDevice(ctx context.Context, use *deviceUse, spec *volume.Spec) error {
	unmounter, err := use.mounts.NewDeviceUnmounter()
	if err != nil {
		return use.failed("NewDeviceUnmounter", spec, volume.NothingDone(err))
	}
	if err := unmounter.UnmountDevice(ctx, use.device.path); err != nil {
		return use.failed("UnmountDevice", spec, err)
	}
	return nil
}

// deviceOfActual is what a volume that is there needs of its node. Where that
// could not be said when its record was found, it is asked for again, and the
// device counts as mounted.
func (m *Manager) deviceOfActual(ctx context.Context, s *podVolume, was actualVolume, plugin volume.VolumePlugin) (*deviceUse, error) {
	if was.device != nil {
		return was.device, nil
	}
	use, err := deviceOf(plugin, was.record.Spec(), was.key.PodUID)
	if err != nil || use == nil || use.device.path == "" {
		return use, err
	}
	unlock, err := m.lockDevice(ctx, use, was.record.Spec(), "UnmountDevice")
	if err != nil {
		return nil, err
	}
	defer unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hold(s, use.device).touched = true
	return use, nil
}
