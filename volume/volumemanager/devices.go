package volumemanager

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
)

// attachPatience is how long a reported device may take to appear, within what
// the attempt has left: the kubelet's.
const attachPatience = 10 * time.Minute

// deviceUse is what a volume needs of its node besides the pod's own mount.
type deviceUse struct {
	plugin volume.DeviceMountableVolumePlugin
	device deviceKey                     // its path is empty where nothing is mounted once per node
	attach volume.AttachableVolumePlugin // nil where nothing is attached
}

// deviceKey is one place where a device is mounted. Two PersistentVolumes may
// name one volume and still have a place each.
type deviceKey struct {
	name v1.UniqueVolumeName
	path string
}

// deviceMount is a device that is mounted for the pods of this node, or may
// be. There is no record of it: it is rebuilt from the records of the pods'
// volumes, each of which stays until its volume has let go of the device. So
// whatever crashes when, the last one's next tear-down finds the device.
type deviceMount struct {
	// holders are the slots that keep it mounted, each of which has a record on
	// disk. A slot that lets go while there are others is done; the last one
	// unmounts first.
	holders map[*slot]struct{}
	deviceState
}

// deviceState changes only under the device's lock.
type deviceState struct {
	// touched: it may be mounted, or half mounted.
	touched bool
	// mounted: it is, and mountPoint says whether the mount table showed it.
	mounted, mountPoint bool
}

// deviceOf finds out what a spec needs, without I/O; nil: nothing. With an
// error it says what the spec may need, as far as that can be said.
func deviceOf(plugin volume.VolumePlugin, spec *volume.Spec) (*deviceUse, error) {
	mountable, ok := volume.AsDeviceMountable(plugin)
	if !ok {
		return nil, nil
	}
	name, err := plugin.GetVolumeName(spec)
	if err != nil {
		return nil, volume.NothingDone(err)
	}
	use := &deviceUse{plugin: mountable, device: deviceKey{name: v1.UniqueVolumeName(plugin.GetPluginName() + "/" + name)}}
	if attachable, ok := volume.AsAttachable(plugin); ok {
		attaches, err := attachable.CanAttach(spec)
		if attaches || err != nil {
			use.attach = attachable
		}
		if err != nil {
			return use, use.failed("CanAttach", spec, volume.NothingDone(err))
		}
	}
	mounts, err := mountable.CanDeviceMount(spec)
	switch {
	case err != nil:
		return use, use.failed("CanDeviceMount", spec, volume.NothingDone(err))
	case mounts:
		use.device.path, err = use.mountPath(spec)
		return use, err
	case use.attach == nil:
		return nil, nil
	}
	return use, nil
}

func (use *deviceUse) mountPath(spec *volume.Spec) (string, error) {
	mounter, err := use.plugin.NewDeviceMounter()
	if err != nil {
		return "", use.failed("NewDeviceMounter", spec, volume.NothingDone(err))
	}
	path, err := mounter.GetDeviceMountPath(spec)
	if err != nil {
		return "", use.failed("GetDeviceMountPath", spec, volume.NothingDone(err))
	}
	return path, nil
}

// failed says which of the plugin's calls has failed.
func (use *deviceUse) failed(op string, spec *volume.Spec, err error) error {
	return &volume.Error{Op: op, Plugin: use.plugin.GetPluginName(), Volume: spec.Name(), Err: err}
}

// hold makes a slot with a record on disk count as one that keeps the device.
// The caller holds the lock.
func (m *Manager) hold(s *slot, key deviceKey) *deviceMount {
	d := m.devices[key]
	if d == nil {
		d = &deviceMount{holders: make(map[*slot]struct{})}
		m.devices[key] = d
	}
	d.holders[s] = struct{}{}
	return d
}

// letGo takes a slot off the device, unless it is the last one and the device
// may be mounted. Whoever is let go may remove its record. The caller holds
// the lock.
func (m *Manager) letGo(s *slot, key deviceKey) bool {
	d := m.devices[key]
	if d == nil {
		return true
	}
	if _, held := d.holders[s]; held && d.touched && len(d.holders) == 1 {
		return false
	}
	delete(d.holders, s)
	if len(d.holders) == 0 {
		delete(m.devices, key)
	}
	return true
}

// letGoOf is letGo for those that do not hold the lock.
func (m *Manager) letGoOf(s *slot, key deviceKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.letGo(s, key)
}

// mustUnmount lets go, or says that the slot is the last one: then whoever
// comes from now on finds the device unmounted, and waits for its lock, which
// the caller holds.
func (m *Manager) mustUnmount(s *slot, key deviceKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.letGo(s, key) {
		return false
	}
	m.devices[key].mounted = false
	return true
}

// recoverDevice makes a slot whose record was found count again. The caller
// holds the lock.
func (m *Manager) recoverDevice(s *slot, record *volume.Record, mounted mounts) {
	plugin, err := m.plugins.FindPluginByName(record.Plugin)
	if err != nil {
		return // nor can it be torn down
	}
	use, err := deviceOf(plugin, record.Spec())
	m.join(s, use)
	if err != nil {
		m.log.Warn("what a recorded volume needs of its node is not known; it is asked again before the volume is torn down", "podUID", record.PodUID, "volume", record.Volumes[0], "error", err)
		return
	}
	s.actual.device = use
	if use == nil || use.device.path == "" {
		return
	}
	d := m.hold(s, use.device)
	d.touched = true
	if c := record.Confirmed; c != nil && c.MountPoint && mounted.has(record.Path) && mounted.has(use.device.path) {
		d.mounted, d.mountPoint = true, true
	}
}

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
	devicePath, err := m.waitForAttach(ctx, u)
	if err != nil || u.device.device.path == "" {
		return err
	}
	return m.mountDevice(ctx, u, devicePath)
}

func (m *Manager) keep(u *setUp) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u.device.device.path != "" {
		m.hold(u.slot, u.device.device)
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
	if u.device.device.path == "" {
		if u.slot.state == StateMounted {
			return true, nil
		}
	} else if d := m.devices[u.device.device]; d.mounted && (onTable || !d.mountPoint) {
		return true, nil
	}
	return false, volume.NothingDone(asError(u.slot.awaits()))
}

func (m *Manager) isMountPoint(path string) (bool, error) {
	if path == "" {
		return false, nil
	}
	table, err := mount.TableOf(m.host.Mounter)
	if err != nil {
		return false, err
	}
	_, mounted, err := table.At(path)
	return mounted, err
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
	mounter, err := u.device.plugin.NewDeviceMounter()
	if err != nil {
		return u.device.failed("NewDeviceMounter", spec, volume.NothingDone(err))
	}
	before := m.setDevice(key, deviceState{touched: true})
	args := mounterArgs(u.pod)
	deviceArgs := volume.DeviceMounterArgs{FsGroup: args.FsGroup, SELinuxLabel: args.SELinuxLabel}
	if err := mounter.MountDevice(ctx, spec, devicePath, key.path, deviceArgs); err != nil {
		if !volume.IsUncertain(err) {
			m.setDevice(key, before)
		}
		return u.device.failed("MountDevice", spec, err)
	}
	after := deviceState{touched: true, mounted: true}
	if after.mountPoint, err = m.isMountPoint(key.path); err != nil {
		return u.device.failed("MountDevice", spec, err)
	}
	m.setDevice(key, after)
	return nil
}

// setDevice notes what became of a device. The caller holds the device's lock
// and has a slot among the holders.
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
func (m *Manager) unstage(ctx context.Context, s *slot, was actualVolume, plugin volume.VolumePlugin) error {
	spec := was.record.Spec()
	use, err := m.deviceOfActual(ctx, s, was, plugin)
	if err != nil || use == nil || use.device.path == "" || m.letGoOf(s, use.device) {
		return err
	}
	unlock, err := m.lockDevice(ctx, use, spec, "UnmountDevice")
	if err != nil {
		return err
	}
	defer unlock()
	if !m.mustUnmount(s, use.device) {
		return nil // another one came meanwhile
	}
	unmounter, err := use.plugin.NewDeviceUnmounter()
	if err != nil {
		return use.failed("NewDeviceUnmounter", spec, volume.NothingDone(err))
	}
	if err := unmounter.UnmountDevice(ctx, use.device.path); err != nil {
		return use.failed("UnmountDevice", spec, err)
	}
	m.setDevice(use.device, deviceState{})
	m.letGoOf(s, use.device)
	return nil
}

// deviceOfActual is what a volume that is there needs of its node. Where that
// could not be said when its record was found, it is asked for again, and the
// device counts as mounted.
func (m *Manager) deviceOfActual(ctx context.Context, s *slot, was actualVolume, plugin volume.VolumePlugin) (*deviceUse, error) {
	if was.device != nil {
		return was.device, nil
	}
	use, err := deviceOf(plugin, was.record.Spec())
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
