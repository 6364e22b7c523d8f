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
func (n *nodeDevices) stage(ctx context.Context, u *setUp) error {
	n.keep(u)
	// Nobody takes from a holder what is mounted, so it needs no lock to see it.
	if there, err := n.staged(u); err != nil || there {
		return err
	}
	unlock, err := n.lockDevice(ctx, u.device, u.record.Spec(), "MountDevice")
	if err != nil {
		return err
	}
	defer unlock()
	there, err := n.staged(u)
	if err != nil || there {
		return err
	}
	if err := n.relabel(ctx, u); err != nil {
		return err
	}
	devicePath, err := n.waitForAttach(ctx, u)
	if err != nil || u.device.device.path == "" {
		return err
	}
	if u.mapping != nil {
		return n.setUpDevice(ctx, u, devicePath)
	}
	return n.mountDevice(ctx, u, devicePath)
}

func (n *nodeDevices) keep(u *setUp) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if u.device.device.path != "" {
		n.hold(u.of, u.device.device)
	}
}

func (n *nodeDevices) lockDevice(ctx context.Context, use *deviceUse, spec *volume.Spec, op string) (unlock func(), err error) {
	unlock, err = n.locks.Lock(ctx, use.device.name)
	if err != nil {
		return nil, use.failed(op, spec, volume.NothingDone(fmt.Errorf("another operation on the device of %s has not ended: %w", use.device.name, err)))
	}
	return unlock, nil
}

// staged reports whether nothing is left to be done about the device. What
// must be attached first and is not is an *[AttachmentError].
func (n *nodeDevices) staged(u *setUp) (bool, error) {
	onTable, err := n.isMountPoint(u.device.device.path)
	if err != nil {
		return false, volume.NothingDone(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.conflict(u); err != nil {
		return false, err
	}
	if u.device.device.path == "" {
		if u.of.state == StateMounted {
			return true, nil
		}
	} else if d := n.mounts[u.device.device]; d.mounted && !d.mislabelled(u) && (onTable || !d.mountPoint) {
		return true, nil
	}
	return false, volume.NothingDone(asError(u.of.awaits()))
}

// waitForAttach waits until the device has appeared, and returns its path;
// empty where nothing is attached.
func (n *nodeDevices) waitForAttach(ctx context.Context, u *setUp) (string, error) {
	if u.device.attach == nil {
		return "", nil
	}
	spec := u.record.Spec()
	attacher, err := u.device.attach.NewAttacher()
	if err != nil {
		return "", u.device.failed("NewAttacher", spec, volume.NothingDone(err))
	}
	n.mu.Lock()
	reported := n.attached[u.device.device.name]
	n.mu.Unlock()
	devicePath, err := attacher.WaitForAttach(ctx, spec, reported, u.pod, attachPatience)
	if err != nil { // and nothing is mounted
		return "", u.device.failed("WaitForAttach", spec, volume.NothingDone(err))
	}
	return devicePath, nil
}

func (n *nodeDevices) mountDevice(ctx context.Context, u *setUp, devicePath string) error {
	spec, key := u.record.Spec(), u.device.device
	mounter, err := u.device.mounts.NewDeviceMounter()
	if err != nil {
		return u.device.failed("NewDeviceMounter", spec, volume.NothingDone(err))
	}
	label := u.record.SELinuxLabel
	before := n.setDevice(key, deviceState{touched: true, label: label})
	args := u.mounterArgs()
	deviceArgs := volume.DeviceMounterArgs{FsGroup: args.FsGroup, SELinuxLabel: args.SELinuxLabel, Progress: args.Progress}
	if err := mounter.MountDevice(ctx, spec, devicePath, key.path, deviceArgs); err != nil {
		if !volume.IsUncertain(err) {
			n.setDevice(key, before)
		}
		return u.device.failed("MountDevice", spec, err)
	}
	after := deviceState{touched: true, mounted: true, label: label}
	if after.mountPoint, err = n.isMountPoint(key.path); err != nil {
		return u.device.failed("MountDevice", spec, err)
	}
	n.setDevice(key, after)
	return nil
}

// setDevice notes what became of a device. The caller holds the device's lock
// and has a volume among the holders.
func (n *nodeDevices) setDevice(key deviceKey, is deviceState) (was deviceState) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.mounts[key]
	was, d.deviceState = d.deviceState, is
	return was
}

// unstage lets go of the device of a volume whose own mount is gone, and
// unmounts it if nobody else has it. Only for that is it waited for what others
// do with the device.
func (n *nodeDevices) unstage(ctx context.Context, s *podVolume, was actualVolume, plugin volume.VolumePlugin) error {
	spec := was.record.Spec()
	use, err := n.deviceOfActual(ctx, s, was, plugin)
	if err != nil || use == nil || use.device.path == "" {
		return err
	}
	if n.letGoOf(s, use.device) {
		return nil
	}
	if err := n.hidden(was.key.Plugin); err != nil {
		return use.failed("UnmountDevice", spec, fmt.Errorf("its device stays, since a volume of another pod may use it: %w", err))
	}
	unlock, err := n.lockDevice(ctx, use, spec, "UnmountDevice")
	if err != nil {
		return err
	}
	defer unlock()
	if !n.mustUnmount(s, use.device) {
		return nil // another one came meanwhile
	}
	if use.block != nil {
		err = n.tearDownDevice(ctx, use, spec, was.key.PodUID)
	} else {
		err = unmountDevice(ctx, use, spec)
	}
	if err != nil {
		return err
	}
	n.setDevice(use.device, deviceState{})
	n.letGoOf(s, use.device)
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
func (n *nodeDevices) deviceOfActual(ctx context.Context, s *podVolume, was actualVolume, plugin volume.VolumePlugin) (*deviceUse, error) {
	if was.device != nil {
		return was.device, nil
	}
	use, err := deviceOf(plugin, was.record.Spec(), was.key.PodUID)
	if err != nil || use == nil || use.device.path == "" {
		return use, err
	}
	unlock, err := n.lockDevice(ctx, use, was.record.Spec(), "UnmountDevice")
	if err != nil {
		return nil, err
	}
	defer unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hold(s, use.device).touched = true
	return use, nil
}
