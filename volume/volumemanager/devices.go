package volumemanager

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// nodeDevices are the devices that are attached and mounted once per node, and which volumes
// have them. A volume without such a device asks it for nothing.
type nodeDevices struct {
	*world
	locks keylock.Map[v1.UniqueVolumeName]

	// What follows is guarded by the world's lock.

	mounts      map[deviceKey]*deviceMount
	oncePod     map[string]map[*podVolume]struct{} // those that wait for a PersistentVolume that another pod has
	attachments map[v1.UniqueVolumeName]*attachment
	reported    map[v1.UniqueVolumeName]struct{} // in use, in the node's status
	attached    map[v1.UniqueVolumeName]string   // with the devices' paths; nil until somebody says
}

func newNodeDevices(w *world) *nodeDevices {
	return &nodeDevices{
		world:       w,
		mounts:      make(map[deviceKey]*deviceMount),
		oncePod:     make(map[string]map[*podVolume]struct{}),
		attachments: make(map[v1.UniqueVolumeName]*attachment),
	}
}

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
func (n *nodeDevices) hold(s *podVolume, key deviceKey) *deviceMount {
	d := n.mounts[key]
	if d == nil {
		d = &deviceMount{holders: make(map[*podVolume]struct{}), waiters: make(map[*podVolume]struct{})}
		n.mounts[key] = d
	}
	d.holders[s] = struct{}{}
	return d
}

// letGo takes a volume off the device, unless it is the last one and the device
// may be mounted. Whoever is let go may remove its record. The caller holds
// the lock.
func (n *nodeDevices) letGo(s *podVolume, key deviceKey) bool {
	d := n.mounts[key]
	if d == nil {
		return true
	}
	if _, held := d.holders[s]; held && d.touched && len(d.holders) == 1 {
		return false
	}
	n.forget(s, key)
	return true
}

// forget takes a volume off a device, of which it has nothing after all. The
// caller holds the lock.
func (n *nodeDevices) forget(s *podVolume, key deviceKey) {
	d := n.mounts[key]
	if d == nil {
		return
	}
	delete(d.holders, s)
	if len(d.holders) == 0 {
		delete(n.mounts, key)
	}
	n.wakeWaiters(d)
}

// passDevice makes another entry the holder of what a volume has. The caller
// holds the lock.
func (n *nodeDevices) passDevice(from, to *podVolume, use *deviceUse) {
	if use == nil {
		return
	}
	n.join(to, use)
	if use.device.path != "" {
		n.hold(to, use.device)
		n.forget(from, use.device)
	}
}

// letGoOf is letGo for those that do not hold the lock.
func (n *nodeDevices) letGoOf(s *podVolume, key deviceKey) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.letGo(s, key)
}

// mustUnmount lets go, or says that the volume is the last one: then whoever
// comes from now on finds the device unmounted, and waits for its lock, which
// the caller holds.
func (n *nodeDevices) mustUnmount(s *podVolume, key deviceKey) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.letGo(s, key) {
		return false
	}
	n.mounts[key].mounted = false
	return true
}

// recoverDevice makes a volume whose record was found count again. The caller
// holds the lock.
func (n *nodeDevices) recoverDevice(s *podVolume, record *mountrecord.Record, mounted rootdir.Mounts) {
	plugin, err := n.plugins.FindPluginByName(record.Plugin)
	if err != nil {
		return // nor can it be torn down
	}
	use, err := deviceOf(plugin, record.Spec(), record.PodUID)
	n.join(s, use)
	if err != nil {
		n.log.Warn("what a recorded volume needs of its node is not known; it is asked again before the volume is torn down", "podUID", record.PodUID, "volume", record.Volumes[0], "error", err)
		return
	}
	s.actual.device = use
	if use == nil || use.device.path == "" {
		return
	}
	d := n.hold(s, use.device)
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

// labelConflict says that a device is mounted with one SELinux label for another pod on
// this node, and is asked for with another; empty: none. The volume is mounted when
// those pods have gone.
func labelConflict(name, mounted, asked string) error {
	return &volume.Failure{
		Cause: ErrSELinuxConflict, Subject: name,
		What: fmt.Sprintf("conflicting SELinux labels of volume %s: %q and %q", name, mounted, asked),
		Next: "it waits until the pods with the former have left this node, or set seLinuxChangePolicy of both pods to Recursive",
	}
}

// conflict says that the device is mounted with another label for others; then
// the volume is tried again when they have let go of it. The caller holds the
// lock.
func (n *nodeDevices) conflict(u *setUp) error {
	if u.device == nil {
		return nil
	}
	d := n.mounts[u.device.device]
	if d == nil || !d.mislabelled(u) || !d.isOthers(u.of) {
		return nil
	}
	u.of.waitForLabel(d)
	return volume.NothingDone(labelConflict(u.record.Spec().Name(), d.label, u.record.SELinuxLabel))
}

// waitForLabel makes the volume wait for the label of a device to go; nil: of
// none. The caller holds the lock.
func (s *podVolume) waitForLabel(d *deviceMount) {
	if s.labelled != nil {
		delete(s.labelled.waiters, s)
	}
	s.labelled = d
	if d != nil {
		d.waiters[s] = struct{}{}
	}
}

// isOthers reports whether others than the volume keep the device as it is
// mounted. The caller holds the lock.
func (d *deviceMount) isOthers(s *podVolume) bool {
	_, held := d.holders[s]
	return d.touched && (len(d.holders) > 1 || !held && len(d.holders) == 1)
}

// wakeWaiters has those tried again that nobody else's label keeps from the
// device any more. The caller holds the lock.
func (n *nodeDevices) wakeWaiters(d *deviceMount) {
	for s := range d.waiters {
		if d.isOthers(s) {
			continue
		}
		s.waitForLabel(nil)
		if s.wanted && s.pod.wanted {
			n.resync(s)
		}
	}
}

func (d *deviceMount) mislabelled(u *setUp) bool {
	return u.mapping == nil && d.touched && d.label != u.record.SELinuxLabel
}

// relabel unmounts a device whose label is not the one asked for, for the only
// pod that has it. The caller holds the device's lock.
func (n *nodeDevices) relabel(ctx context.Context, u *setUp) error {
	n.mu.Lock()
	d := n.mounts[u.device.device]
	wrong := d != nil && d.mislabelled(u)
	n.mu.Unlock()
	if !wrong {
		return nil
	}
	if err := unmountDevice(ctx, u.device, u.record.Spec()); err != nil {
		return err
	}
	n.setDevice(u.device.device, deviceState{})
	return nil
}

// usedByOther says that a PersistentVolume whose only access mode is ReadWriteOncePod
// is not set up for a pod, since another one on this node has it. It is set up once
// that pod's volume is torn down.
func usedByOther(pv string, pod, user types.NamespacedName, userUID types.UID) error {
	return &volume.Failure{
		Cause: ErrUsedByOtherPod, Subject: pv,
		What: fmt.Sprintf("PersistentVolume %s has the access mode ReadWriteOncePod and is in use by pod %s (UID %s)", pv, user, userUID),
		Next: fmt.Sprintf("pod %s gets it when that one has left this node", pod),
	}
}

func isOncePod(pv *v1.PersistentVolume) bool {
	return pv != nil && slices.Equal(pv.Spec.AccessModes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod})
}

// checkOncePod refuses a ReadWriteOncePod volume that another pod has something
// of, as the kubelet does (KEP-2485), but whatever its plugin; then the volume is
// tried again when a pod has let go of it. What is mounted already stays, and may
// be looked at again. The caller holds the lock.
func (n *nodeDevices) checkOncePod(u *setUp) error {
	pv := u.record.PersistentVolume
	if !isOncePod(pv) || u.of.state == StateMounted && u.of.actual.exists() {
		return nil
	}
	for _, p := range n.pods {
		if p == u.of.pod || p.find(func(s *podVolume) bool { return s.has(u, pv.Name) }) == nil {
			continue
		}
		waiters := n.oncePod[pv.Name]
		if waiters == nil {
			waiters = make(map[*podVolume]struct{})
			n.oncePod[pv.Name] = waiters
		}
		waiters[u.of] = struct{}{}
		u.of.oncePod = pv.Name
		return usedByOther(pv.Name, u.record.Pod, p.name, p.uid)
	}
	return nil
}

// has reports whether the volume has something of a PersistentVolume that is asked
// for. Of a directory whose record is lost only the name is known.
func (s *podVolume) has(u *setUp, pvName string) bool {
	r := s.actual.record
	switch {
	case !s.actual.exists():
		return false
	case r == nil || r.Rebuilt:
		return s.actual.key.Plugin == u.key.Plugin && s.actual.key.Spec == u.key.Spec
	}
	return r.PersistentVolume != nil && r.PersistentVolume.Name == pvName
}

// stopWaitingForPod forgets that the volume waits for another pod. The caller holds
// the lock.
func (n *nodeDevices) stopWaitingForPod(s *podVolume) {
	if s.oncePod == "" {
		return
	}
	delete(n.oncePod[s.oncePod], s)
	if len(n.oncePod[s.oncePod]) == 0 {
		delete(n.oncePod, s.oncePod)
	}
	s.oncePod = ""
}

// wakeForPod has those tried again that wait for another pod to let go of a
// volume. The caller holds the lock.
func (n *nodeDevices) wakeForPod(pvName string) {
	for s := range n.oncePod[pvName] {
		n.stopWaitingForPod(s)
		if s.wanted && s.pod.wanted {
			n.resync(s)
		}
	}
}
