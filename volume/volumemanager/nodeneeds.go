package volumemanager

import (
	"context"

	"github.com/podvol/podvol/util/tracing"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/selinux"
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
	"github.com/podvol/podvol/volume/volumemanager/internal/oncepod"
)

// nodeNeeds knows what some volumes need of their node besides their own mount: a device that is
// attached, or mounted once per node, an SELinux label, or that no other pod has them. For a
// volume that needs none of this, as most do, its methods do nothing.
type nodeNeeds struct {
	entries *entries
	actual  *actualStateOfWorld
	devices *devices.Table
	selinux selinux.Policy
}

// find finds out what the volume needs of its node. With an error the device is what it may
// need, as far as that can be said.
func (n *nodeNeeds) find(ctx context.Context, u *setUp) (err error) {
	if u.needsNode = n.areThere(u); !u.needsNode {
		return nil
	}
	if u.device, err = devices.Attaching(ctx, u.plugin, u.spec, u.pod.UID); err != nil {
		return err
	}
	if u.mapping != nil {
		u.mapping.Use = u.device
	}
	if u.device != nil && u.device.Unsure != nil {
		return u.device.Unsure
	}
	u.record.SELinuxLabel, err = n.label(ctx, u)
	return err
}

// areThere reports whether there is anything to find out: by the plugin, by the
// PersistentVolume, or since the volume has something already.
func (n *nodeNeeds) areThere(u *setUp) bool {
	_, mountsDevice := volume.AsDeviceMountable(u.plugin)
	if pv := u.spec.PersistentVolume; mountsDevice || u.spec.IsBlock() || pv != nil && (n.selinux.Labels != nil || oncepod.Is(pv)) {
		return true
	}
	n.entries.Lock()
	defer n.entries.Unlock()
	label, _ := n.mountedLabel(u)
	return label != "" || u.of.holding != (devices.Holding{})
}

// label is the label that the volume is asked to be mounted with. One that is
// mounted keeps its own, since another needs another mount.
func (n *nodeNeeds) label(ctx context.Context, u *setUp) (string, error) {
	n.entries.Lock()
	label, mounted := n.mountedLabel(u)
	n.entries.Unlock()
	if mounted {
		return label, nil
	}
	return n.selinux.MountLabel(ctx, u.pod, u.record.Volumes, u.plugin, u.spec)
}

// mountedLabel is what the volume is mounted with already. The caller holds the lock.
func (n *nodeNeeds) mountedLabel(u *setUp) (label string, mounted bool) {
	for _, s := range u.of.pod.volumes { // one that was adopted has another entry
		if s.state == StateMounted && s.actual.record != nil && s.actual.key == u.key {
			return s.actual.record.SELinuxLabel, true
		}
	}
	return "", false
}

// join makes the volume count among those that use its device. The caller holds the lock.
func (n *nodeNeeds) join(u *setUp) {
	if u.needsNode {
		n.devices.Join(u.of, u.device)
	}
}

// pass makes another entry of the pod the one that uses a device. The caller holds the lock.
func (n *nodeNeeds) pass(from, to *podVolume) { n.devices.Pass(from, to, from.actual.device) }

// check refuses a volume that waits for reports about its attachment, for another pod,
// or for the label of its device. One that is mounted already may be reconciled again. The
// caller holds the lock.
func (n *nodeNeeds) check(u *setUp) error {
	if !u.needsNode {
		return nil
	}
	u.of.mayWait = true // from here on, or from when the device is staged
	if !u.of.IsMounted() || !u.of.Exists() {
		if err := n.devices.CheckReports(u.of); err != nil {
			return volume.NothingDone(err)
		}
		if err := n.checkOncePod(u); err != nil {
			return volume.NothingDone(err)
		}
	}
	return n.devices.Admit(u.deviceRequest(), u.of.actual.device)
}

// checkOncePod refuses a ReadWriteOncePod volume that another pod has something of, whatever its
// plugin. It is tried again when that pod has let go of it. The caller holds the lock.
func (n *nodeNeeds) checkOncePod(u *setUp) error {
	pv := u.record.PersistentVolume
	if !oncepod.Is(pv) {
		return nil
	}
	for _, p := range n.entries.pods {
		if p == u.of.pod || p.find(func(s *podVolume) bool { return s.has(u, pv.Name) }) == nil {
			continue
		}
		n.actual.oncePod.Add(u.of, pv.Name)
		return oncepod.Used(pv.Name, u.record.Pod, p.name, p.uid)
	}
	return nil
}

// has reports whether the volume has something of a PersistentVolume that is asked
// for. Of a directory whose record is lost only the name is known.
func (s *podVolume) has(u *setUp, pvName string) bool {
	r := s.actual.record
	switch {
	case !s.actual.isPods():
		return false
	case r == nil || r.Rebuilt:
		return s.actual.key.Plugin == u.key.Plugin && s.actual.key.Spec == u.key.Spec
	}
	return r.PersistentVolume != nil && r.PersistentVolume.Name == pvName
}

// stage makes sure that the volume's device is there and mounted, if it has one.
func (n *nodeNeeds) stage(ctx context.Context, u *setUp) error {
	if !u.needsNode {
		return nil
	}
	return tracing.Step(ctx, "device", func(ctx context.Context) error { return n.devices.Stage(ctx, u.deviceRequest()) })
}

// deviceRequest is what the set-up asks of the volume's device.
func (u *setUp) deviceRequest() devices.Request {
	args := u.mounterArgs()
	r := devices.Request{
		Holder: u.of, Use: u.device, Spec: u.record.Spec(), Pod: u.pod, Label: u.record.SELinuxLabel,
		Args: volume.DeviceMounterArgs{FsGroup: args.FsGroup, SELinuxLabel: args.SELinuxLabel, Progress: args.Progress},
	}
	if u.mapping != nil {
		r.Mapper = u.mapping.Mapper
	}
	return r
}

// letGo takes a volume that was not set up off its device. It reports false where the volume's
// record must stay for the device's sake.
func (n *nodeNeeds) letGo(u *setUp) bool {
	return !u.needsNode || n.devices.LetGo(u.of, u.device)
}

// unstage undoes stage, for a volume whose own mount is gone.
func (n *nodeNeeds) unstage(ctx context.Context, s *podVolume, was actualVolume, plugin volume.VolumePlugin) error {
	leaving := devices.Leaving{Holder: s, Plugin: plugin, Spec: was.record.Spec(), PodUID: was.key.PodUID, Use: was.device}
	if was.device == nil {
		return n.devices.Unstage(ctx, leaving)
	}
	return tracing.Step(ctx, "device", func(ctx context.Context) error { return n.devices.Unstage(ctx, leaving) })
}
