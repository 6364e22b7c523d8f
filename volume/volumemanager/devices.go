package volumemanager

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// deviceUse is what a volume needs of its node besides the pod's own mount.
type deviceUse struct {
	plugin volume.VolumePlugin
	mounts volume.DeviceMountableVolumePlugin // nil for a block volume
	block  volume.BlockVolumePlugin           // nil for a file system
	device deviceKey                          // its path is empty where nothing is done once per node
	attach volume.AttachableVolumePlugin      // nil where nothing is attached
}

// deviceKey is one place where a device is mounted, or that a block volume's
// device is bound below for its pods. Two PersistentVolumes may
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
	// holders are the volumes that keep it mounted, each of which has a record on
	// disk. A volume that lets go while there are others is done; the last one
	// unmounts first.
	holders map[*podVolume]struct{}
	// waiters are the volumes that wait until the others have let go, since the
	// device is mounted with a label that is not theirs.
	waiters map[*podVolume]struct{}
	deviceState
}

// deviceState changes only under the device's lock.
type deviceState struct {
	// touched: it may be mounted, or half mounted.
	touched bool
	// mounted: it is, and mountPoint says whether the mount table showed it. A
	// block volume's device is set up instead, which no mount table shows.
	mounted, mountPoint bool
	// label is the SELinux label that it is mounted with, if touched; empty: none.
	label string
	// attachedAt is where a block volume's attached device is, if it is known.
	attachedAt string
}

// deviceOf finds out what a spec needs, without I/O; nil: nothing. With an
// error it says what the spec may need, as far as that can be said.
func deviceOf(plugin volume.VolumePlugin, spec *volume.Spec, podUID types.UID) (*deviceUse, error) {
	mountable, mounts := volume.AsDeviceMountable(plugin)
	if !mounts && !spec.IsBlock() {
		return nil, nil
	}
	name, err := plugin.GetVolumeName(spec)
	if err != nil {
		return nil, volume.NothingDone(err)
	}
	use := &deviceUse{plugin: plugin, device: deviceKey{name: v1.UniqueVolumeName(plugin.GetPluginName() + "/" + name)}}
	if attachable, ok := volume.AsAttachable(plugin); ok {
		attaches, err := attachable.CanAttach(spec)
		if attaches || err != nil {
			use.attach = attachable
		}
		if err != nil {
			return use, use.failed("CanAttach", spec, volume.NothingDone(err))
		}
	}
	if spec.IsBlock() {
		return use, use.ofBlock(spec, podUID)
	}
	use.mounts = mountable
	return use.ofMount(spec)
}

// ofBlock adds what a block volume needs: its device is set up once per node.
func (use *deviceUse) ofBlock(spec *volume.Spec, podUID types.UID) (err error) {
	if use.block, err = blockPlugin(use.plugin, spec); err != nil {
		return volume.NothingDone(err)
	}
	unmapper, err := use.block.NewBlockVolumeUnmapper(spec.Name(), podUID) // it needs no pod, as a mapper does
	if err != nil {
		return use.failed("NewBlockVolumeUnmapper", spec, volume.NothingDone(err))
	}
	if use.device.path, err = unmapper.GetGlobalMapPath(spec); err != nil {
		return use.failed("GetGlobalMapPath", spec, volume.NothingDone(err))
	}
	return nil
}

// ofMount adds what a file system needs, and returns nil where that is nothing.
func (use *deviceUse) ofMount(spec *volume.Spec) (_ *deviceUse, err error) {
	mounts, err := use.mounts.CanDeviceMount(spec)
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
	mounter, err := use.mounts.NewDeviceMounter()
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

// hold makes a volume with a record on disk count as one that keeps the device.
// The caller holds the lock.
func (m *Manager) hold(s *podVolume, key deviceKey) *deviceMount {
	d := m.devices[key]
	if d == nil {
		d = &deviceMount{holders: make(map[*podVolume]struct{}), waiters: make(map[*podVolume]struct{})}
		m.devices[key] = d
	}
	d.holders[s] = struct{}{}
	return d
}

// letGo takes a volume off the device, unless it is the last one and the device
// may be mounted. Whoever is let go may remove its record. The caller holds
// the lock.
func (m *Manager) letGo(s *podVolume, key deviceKey) bool {
	d := m.devices[key]
	if d == nil {
		return true
	}
	if _, held := d.holders[s]; held && d.touched && len(d.holders) == 1 {
		return false
	}
	m.forget(s, key)
	return true
}

// forget takes a volume off a device, of which it has nothing after all. The
// caller holds the lock.
func (m *Manager) forget(s *podVolume, key deviceKey) {
	d := m.devices[key]
	if d == nil {
		return
	}
	delete(d.holders, s)
	if len(d.holders) == 0 {
		delete(m.devices, key)
	}
	m.wakeWaiters(d)
}

// passDevice makes another entry the holder of what a volume has. The caller
// holds the lock.
func (m *Manager) passDevice(from, to *podVolume, use *deviceUse) {
	if use == nil {
		return
	}
	m.join(to, use)
	if use.device.path != "" {
		m.hold(to, use.device)
		m.forget(from, use.device)
	}
}

// letGoOf is letGo for those that do not hold the lock.
func (m *Manager) letGoOf(s *podVolume, key deviceKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.letGo(s, key)
}

// mustUnmount lets go, or says that the volume is the last one: then whoever
// comes from now on finds the device unmounted, and waits for its lock, which
// the caller holds.
func (m *Manager) mustUnmount(s *podVolume, key deviceKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.letGo(s, key) {
		return false
	}
	m.devices[key].mounted = false
	return true
}

// recoverDevice makes a volume whose record was found count again. The caller
// holds the lock.
func (m *Manager) recoverDevice(s *podVolume, record *mountrecord.Record, mounted rootdir.Mounts) {
	plugin, err := m.plugins.FindPluginByName(record.Plugin)
	if err != nil {
		return // nor can it be torn down
	}
	use, err := deviceOf(plugin, record.Spec(), record.PodUID)
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
	d.recoverLabel(use.device.path, record, mounted)
	d.touched = true
	switch c := record.Confirmed; {
	case c == nil:
	case c.Device != nil && mounted.Has(c.Device.Bind):
		d.mounted = true
	case c.MountPoint && mounted.Has(record.Path) && mounted.Has(use.device.path):
		d.mounted, d.mountPoint = true, true
	}
}

// recoverLabel finds out which label the device is mounted with. A confirmed
// record says it; another may have been written by a set-up that was about to
// find out that the label is another one, so it is asked for in the mount table.
func (d *deviceMount) recoverLabel(path string, record *mountrecord.Record, mounted rootdir.Mounts) {
	switch {
	case record.Confirmed != nil:
		d.label = record.SELinuxLabel
	case d.touched: // another record says it, or did already
	case mounted.Has(path):
		d.label = mounted.Label(path)
	default:
		d.label = record.SELinuxLabel
	}
}
