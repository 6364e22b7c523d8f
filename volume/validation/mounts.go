package validation

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/util/kubeapi"
)

// containerChecker checks the containers of a pod with these volumes.
type containerChecker struct {
	*faults
	volumes map[string]*v1.Volume // by name
}

// container checks a container's volumeMounts and volumeDevices.
func (c *containerChecker) container(field string, container *v1.Container) {
	c.names(field+".name", container.Name, validation.IsDNS1123Label)
	for i := range container.VolumeMounts {
		c.volume = container.VolumeMounts[i].Name
		c.volumeMount(fmt.Sprintf("%s.volumeMounts[%d]", field, i), container, i)
	}
	for i := range container.VolumeDevices {
		c.volume = container.VolumeDevices[i].Name
		c.volumeDevice(fmt.Sprintf("%s.volumeDevices[%d]", field, i), container, i)
	}
	c.volume = ""
}

func (c *containerChecker) volumeMount(field string, container *v1.Container, i int) {
	m := &container.VolumeMounts[i]
	v, ok := c.volumes[m.Name]
	if !ok {
		c.refuse(field+".name", "the pod has no volume %q; add it below spec.volumes, or correct the name", m.Name)
	}
	c.required(field+".mountPath", m.MountPath)
	if slices.ContainsFunc(container.VolumeMounts[:i], func(other v1.VolumeMount) bool { return other.MountPath == m.MountPath }) {
		c.refuse(field+".mountPath", "%q is mounted twice in this container; give each volumeMount a path of its own", m.MountPath)
	}
	c.subPath(field, m)
	c.mountPropagation(field+".mountPropagation", m, container)
	c.recursiveReadOnly(field+".recursiveReadOnly", m)
	options := kubeapi.BindMountOptions(m)
	c.bindMountOptions(field+".bindMountOptions", options)
	if ok && v.Image != nil && len(options) > 0 {
		c.refuse(field+".bindMountOptions", "cannot be used with image volumes; remove them")
	}
}

func (c *containerChecker) subPath(field string, m *v1.VolumeMount) {
	if m.SubPath != "" && m.SubPathExpr != "" {
		c.refuse(field+".subPathExpr", "subPath and subPathExpr exclude each other; remove one")
	}
	c.localPath(field+".subPath", m.SubPath)
	c.localPath(field+".subPathExpr", m.SubPathExpr)
}

// noSubPaths is for ephemeral containers: for debugging they see whole volumes.
func (c *containerChecker) noSubPaths(field string, mounts []v1.VolumeMount) {
	for i, m := range mounts {
		c.volume = m.Name
		for _, f := range []struct{ name, value string }{{"subPath", m.SubPath}, {"subPathExpr", m.SubPathExpr}} {
			if f.value != "" {
				c.refuse(fmt.Sprintf("%s.volumeMounts[%d].%s", field, i, f.name), "cannot be set for an ephemeral container; mount the whole volume")
			}
		}
	}
	c.volume = ""
}

func (c *containerChecker) mountPropagation(field string, m *v1.VolumeMount, container *v1.Container) {
	if m.MountPropagation == nil {
		return
	}
	oneOf(c.faults, field, *m.MountPropagation, v1.MountPropagationNone, v1.MountPropagationHostToContainer, v1.MountPropagationBidirectional)
	s := container.SecurityContext
	privileged := s != nil && s.Privileged != nil && *s.Privileged
	if *m.MountPropagation == v1.MountPropagationBidirectional && !privileged {
		c.refuse(field, "Bidirectional is for privileged containers only; make container %q privileged, or use HostToContainer", container.Name)
	}
}

func (c *containerChecker) recursiveReadOnly(field string, m *v1.VolumeMount) {
	if m.RecursiveReadOnly == nil || *m.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
		return
	}
	oneOf(c.faults, field, *m.RecursiveReadOnly, v1.RecursiveReadOnlyDisabled, v1.RecursiveReadOnlyIfPossible, v1.RecursiveReadOnlyEnabled)
	if !m.ReadOnly {
		c.refuse(field, "%s needs readOnly: true on the same volumeMount", *m.RecursiveReadOnly)
	}
	if m.MountPropagation != nil && *m.MountPropagation != v1.MountPropagationNone {
		c.refuse(field, "%s needs mountPropagation: None, not %s", *m.RecursiveReadOnly, *m.MountPropagation)
	}
}

func (c *containerChecker) bindMountOptions(field string, options []string) {
	for i, o := range options {
		field := fmt.Sprintf("%s[%d]", field, i)
		oneOf(c.faults, field, o, "noexec", "nodev", "nosuid")
		if slices.Contains(options[:i], o) {
			c.refuse(field, "%q is there already; remove one", o)
		}
	}
}

func (c *containerChecker) volumeDevice(field string, container *v1.Container, i int) {
	d, others := container.VolumeDevices[i], container.VolumeDevices[:i]
	switch v, ok := c.volumes[d.Name]; {
	case !ok:
		c.refuse(field+".name", "the pod has no volume %q; add it below spec.volumes, or correct the name", d.Name)
	case v.PersistentVolumeClaim == nil && v.Ephemeral == nil:
		c.refuse(field+".name", "only a persistentVolumeClaim or ephemeral volume can be a device; use volumeMounts")
	}
	c.required(field+".devicePath", d.DevicePath)
	c.noBacksteps(field+".devicePath", d.DevicePath)
	if slices.ContainsFunc(others, func(o v1.VolumeDevice) bool { return o.Name == d.Name }) {
		c.refuse(field+".name", "%q is a device of this container already; remove one", d.Name)
	}
	if slices.ContainsFunc(others, func(o v1.VolumeDevice) bool { return o.DevicePath == d.DevicePath }) {
		c.refuse(field+".devicePath", "%q is the path of another device of this container; give each a path of its own", d.DevicePath)
	}
	if slices.ContainsFunc(container.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == d.Name }) {
		c.refuse(field+".name", "%q is in volumeMounts too; a volume is a device or is mounted, not both; remove one", d.Name)
	}
	if slices.ContainsFunc(container.VolumeMounts, func(m v1.VolumeMount) bool { return m.MountPath == d.DevicePath }) {
		c.refuse(field+".devicePath", "%q is the mountPath of a volumeMount too; give each a path of its own", d.DevicePath)
	}
}

// containerNames refuses two containers of one name, of whichever kind: a name
// must stand for one container.
func (c *containerChecker) containerNames(pod *v1.Pod) {
	first := make(map[string]string)
	check := func(field, name string) {
		if other, twice := first[name]; twice {
			c.refuse(field+".name", "%q is the name of %s already; rename one", name, other)
			return
		}
		first[name] = field
	}
	for i, container := range pod.Spec.InitContainers {
		check(fmt.Sprintf("spec.initContainers[%d]", i), container.Name)
	}
	for i, container := range pod.Spec.Containers {
		check(fmt.Sprintf("spec.containers[%d]", i), container.Name)
	}
	for i, container := range pod.Spec.EphemeralContainers {
		check(fmt.Sprintf("spec.ephemeralContainers[%d]", i), container.Name)
	}
}
