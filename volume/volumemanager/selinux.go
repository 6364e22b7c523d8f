package volumemanager

import (
	"context"
	"fmt"

	"github.com/podvol/podvol/volume"
)

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

// label sets the label that the volume is asked to be mounted with. One that is
// mounted keeps its own, since another needs another mount.
func (m *Manager) label(ctx context.Context, u *setUp, plugin volume.VolumePlugin, spec *volume.Spec) (err error) {
	if label, mounted := m.mountedLabel(u); mounted {
		u.record.SELinuxLabel = label
		return nil
	}
	u.record.SELinuxLabel, err = m.config.SELinux.MountLabel(ctx, u.pod, u.record.Volumes, plugin, spec)
	return err
}

func (m *Manager) mountedLabel(u *setUp) (label string, mounted bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range u.of.pod.volumes { // one that was adopted has another entry
		if s.state == StateMounted && s.actual.record != nil && s.actual.key == u.key {
			return s.actual.record.SELinuxLabel, true
		}
	}
	return "", false
}

// conflict says that the device is mounted with another label for others; then
// the volume is tried again when they have let go of it. The caller holds the
// lock.
func (m *Manager) conflict(u *setUp) error {
	if u.device == nil {
		return nil
	}
	d := m.devices[u.device.device]
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
func (m *Manager) wakeWaiters(d *deviceMount) {
	for s := range d.waiters {
		if d.isOthers(s) {
			continue
		}
		s.waitForLabel(nil)
		if s.wanted && s.pod.wanted {
			m.resync(s)
		}
	}
}

func (d *deviceMount) mislabelled(u *setUp) bool {
	return u.mapping == nil && d.touched && d.label != u.record.SELinuxLabel
}

// relabel unmounts a device whose label is not the one asked for, for the only
// pod that has it. The caller holds the device's lock.
func (m *Manager) relabel(ctx context.Context, u *setUp) error {
	m.mu.Lock()
	d := m.devices[u.device.device]
	wrong := d != nil && d.mislabelled(u)
	m.mu.Unlock()
	if !wrong {
		return nil
	}
	if err := unmountDevice(ctx, u.device, u.record.Spec()); err != nil {
		return err
	}
	m.setDevice(u.device.device, deviceState{})
	return nil
}
