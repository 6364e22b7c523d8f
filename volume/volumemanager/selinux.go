package volumemanager

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// SELinuxLabels is the role that knows how this node labels containers' files.
type SELinuxLabels interface {
	// FileLabel returns the label that the files of a container with these
	// options have. An empty one says that it is not known before the container
	// starts, as without a level: then runtimes choose one. The options are only
	// read.
	FileLabel(options *v1.SELinuxOptions) (string, error)
}

// severalLabels says that containers of one pod use a volume with different labels,
// while a file system is mounted with one.
func severalLabels(name string, labels []string) error {
	return &volume.Failure{
		Cause: ErrSELinuxConflict, Subject: name,
		What: fmt.Sprintf("multiple SELinux labels found: the containers that mount volume %q have %s", name, strings.Join(labels, " and ")),
		Next: "give them the same seLinuxOptions, or set the pod's seLinuxChangePolicy to Recursive",
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

// mountLabel is the SELinux label that a file system is mounted with; empty:
// none, and the runtime labels the files one by one. The rules are those of
// KEP-1710: the plugin must be able to, the containers must agree, and the
// volume must be ReadWriteOncePod or the pod's policy MountOption; the policy
// Recursive opts out.
func (m *Manager) mountLabel(ctx context.Context, pod *v1.Pod, names []string, plugin volume.VolumePlugin, spec *volume.Spec) (string, error) {
	if m.config.SELinux == nil || spec.PersistentVolume == nil || spec.IsBlock() || !m.mountsWithLabel(pod, spec.PersistentVolume) {
		return "", nil
	}
	able, ok := volume.AsSELinux(plugin)
	if !ok {
		return "", nil
	}
	if can, err := able.SupportsSELinuxContextMount(ctx, spec); err != nil || !can {
		return "", volume.NothingDone(err)
	}
	labels, err := m.labelsOf(pod, names)
	switch {
	case err != nil:
		return "", err
	case len(labels) > 1:
		return "", volume.NothingDone(severalLabels(names[0], labels))
	case len(labels) == 0:
		return "", nil
	}
	return labels[0], volume.CheckSELinuxLabel("seLinuxOptions", labels[0])
}

// mountsWithLabel reports whether policy and access modes allow it.
func (m *Manager) mountsWithLabel(pod *v1.Pod, pv *v1.PersistentVolume) bool {
	oncePod := slices.Equal(pv.Spec.AccessModes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod})
	if sc := pod.Spec.SecurityContext; sc != nil && sc.SELinuxChangePolicy != nil {
		return *sc.SELinuxChangePolicy == v1.SELinuxChangePolicyMountOption
	}
	return oncePod || m.config.SELinuxMount
}

// labelsOf are the labels of the pod's containers that mount one of these
// volumes, sorted, each once. Containers whose label is not known do not count.
func (m *Manager) labelsOf(pod *v1.Pod, names []string) (labels []string, err error) {
	volume.EachContainer(pod, func(c *v1.Container, _ string) bool {
		mounts := slices.ContainsFunc(c.VolumeMounts, func(v v1.VolumeMount) bool { return slices.Contains(names, v.Name) })
		options := seLinuxOptions(pod, c)
		if !mounts || options == nil {
			return true
		}
		var label string
		if label, err = m.config.SELinux.FileLabel(options); err == nil && label != "" {
			labels = append(labels, label)
		}
		return err == nil
	})
	slices.Sort(labels)
	return slices.Compact(labels), volume.NothingDone(err)
}

// seLinuxOptions are the container's own, or else the pod's.
func seLinuxOptions(pod *v1.Pod, c *v1.Container) *v1.SELinuxOptions {
	if c.SecurityContext != nil && c.SecurityContext.SELinuxOptions != nil {
		return c.SecurityContext.SELinuxOptions
	}
	if pod.Spec.SecurityContext != nil {
		return pod.Spec.SecurityContext.SELinuxOptions
	}
	return nil
}

// label sets the label that the volume is asked to be mounted with. One that is
// mounted keeps its own, since another needs another mount.
func (m *Manager) label(ctx context.Context, u *setUp, plugin volume.VolumePlugin, spec *volume.Spec) (err error) {
	if label, mounted := m.mountedLabel(u); mounted {
		u.record.SELinuxLabel = label
		return nil
	}
	u.record.SELinuxLabel, err = m.mountLabel(ctx, u.pod, u.record.Volumes, plugin, spec)
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
