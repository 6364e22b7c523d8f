package containermounts

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
)

// Causes of errors, for [errors.Is]; each is a *[volume.Failure]'s.
const (
	// ErrUnknownContainer: the pod has no container of this name.
	ErrUnknownContainer volume.Cause = "the pod has no such container"
	// ErrRuntimeLacks: a volumeMount asks for more than the runtime can do: see
	// [RuntimeFeatures].
	ErrRuntimeLacks volume.Cause = "the container runtime cannot do it"
)

// noRecursiveReadOnly says that a volumeMount must be read-only with all that is
// mounted inside (recursiveReadOnly: Enabled), and that the runtime cannot do that.
func noRecursiveReadOnly(mountPath string) error {
	return &volume.Failure{
		Cause: ErrRuntimeLacks, Subject: mountPath,
		What: fmt.Sprintf("the mount at %s must be recursively read-only (recursiveReadOnly: Enabled), which the container runtime on this node, or its kernel, cannot do", mountPath),
		Next: "update them (Linux 5.12), or ask for IfPossible",
	}
}

// noBindOptions says that a volumeMount must have options (noexec, …) that the
// runtime does not give to mounts.
func noBindOptions(mountPath string, options []string) error {
	return &volume.Failure{
		Cause: ErrRuntimeLacks, Subject: mountPath,
		What: fmt.Sprintf("the mount at %s must be %s (bindMountOptions), which the container runtime on this node cannot do", mountPath, strings.Join(options, " and ")),
		Next: "update it, or remove them from the pod",
	}
}

// mountField is the path of a volumeMount in the pod.
func (c *container) mountField(i int) string { return fmt.Sprintf("%s.volumeMounts[%d]", c.field, i) }

// inContainer is where a path of the manifest is in the container. A relative
// one begins at its root, as with the kubelet, and ".." ends there.
func inContainer(mountPath string) string { return path.Clean("/" + mountPath) }

// propagation is the kubelet's translation, with the rule of the API server for
// Bidirectional: what a container mounts there appears on the host.
func (c *container) propagation(i int) (mount.Propagation, error) {
	asked := c.spec.VolumeMounts[i].MountPropagation
	if asked == nil {
		return mount.PropagationPrivate, nil
	}
	switch *asked {
	case v1.MountPropagationNone:
		return mount.PropagationPrivate, nil
	case v1.MountPropagationHostToContainer:
		return mount.PropagationSlave, nil
	case v1.MountPropagationBidirectional:
		if !c.isPrivileged() {
			return "", volume.Invalid(c.mountField(i)+".mountPropagation", "Bidirectional is for privileged containers only; make container %q privileged, or use HostToContainer", c.spec.Name)
		}
		return mount.PropagationShared, nil
	}
	return "", volume.Invalid(c.mountField(i)+".mountPropagation", "%q is none of None, HostToContainer and Bidirectional", *asked)
}

func (c *container) isPrivileged() bool {
	s := c.spec.SecurityContext
	return s != nil && s.Privileged != nil && *s.Privileged
}

// recursiveReadOnly follows KEP-3857.
func (c *container) recursiveReadOnly(i int) (bool, error) {
	asked := &c.spec.VolumeMounts[i]
	field := c.mountField(i) + ".recursiveReadOnly"
	if asked.RecursiveReadOnly == nil || *asked.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	mode, supported := *asked.RecursiveReadOnly, c.options.Runtime.RecursiveReadOnly
	switch {
	case mode != v1.RecursiveReadOnlyIfPossible && mode != v1.RecursiveReadOnlyEnabled:
		return false, volume.Invalid(field, "%q is none of Disabled, IfPossible and Enabled", mode)
	case !asked.ReadOnly:
		return false, volume.Invalid(field, "%s needs readOnly: true", mode)
	case asked.MountPropagation != nil && *asked.MountPropagation != v1.MountPropagationNone:
		return false, volume.Invalid(field, "%s needs mountPropagation: None, not %s", mode, *asked.MountPropagation)
	case mode == v1.RecursiveReadOnlyEnabled && !supported:
		return false, volume.NothingDone(noRecursiveReadOnly(asked.MountPath))
	}
	return supported, nil
}

// bindMountOptions follows KEP-5855; what they may be was seen to when the pod was
// declared.
func (c *container) bindMountOptions(i int) ([]string, error) {
	asked := &c.spec.VolumeMounts[i]
	options := kubeapi.BindMountOptions(asked)
	if len(options) > 0 && !c.options.Runtime.BindMountOptions {
		return nil, volume.NothingDone(noBindOptions(asked.MountPath, options))
	}
	return slices.Clone(options), nil
}

// checkDestinations refuses what the container could not show: two things at
// one place, or a volume in place of its root.
func (c *container) checkDestinations() error {
	var errs []error
	taken := make(map[string]string)
	check := func(field, given string) {
		at := inContainer(given)
		if at == "/" {
			errs = append(errs, volume.Invalid(field, "%q is the container's root, which no volume can take the place of", given))
		}
		if other, ok := taken[at]; ok {
			errs = append(errs, volume.Invalid(field, "%q is %s in the container, where %s puts something already", given, at, other))
			return
		}
		taken[at] = field
	}
	for i, m := range c.spec.VolumeMounts {
		check(c.mountField(i)+".mountPath", m.MountPath)
	}
	for i, d := range c.spec.VolumeDevices {
		check(c.deviceField(i)+".devicePath", d.DevicePath)
	}
	return errors.Join(errs...)
}

// checkMappings refuses mappings that no user namespace can have, and devices in
// one: the API server forbids that too.
func (c *container) checkMappings() error {
	if len(c.options.UIDMappings) == 0 && len(c.options.GIDMappings) == 0 {
		return nil
	}
	var errs []error
	for _, list := range [][]mount.IDMapping{c.options.UIDMappings, c.options.GIDMappings} {
		if len(list) == 0 {
			errs = append(errs, volume.Invalid("options", "a user namespace needs mappings of both user and group ids"))
		}
		if slices.ContainsFunc(list, func(m mount.IDMapping) bool { return m.Size == 0 }) {
			errs = append(errs, volume.Invalid("options", "an id mapping must not have the size 0"))
		}
	}
	if len(c.spec.VolumeDevices) > 0 {
		errs = append(errs, volume.Invalid(c.field+".volumeDevices", "must be empty for a pod with a user namespace; use hostUsers: true"))
	}
	return errors.Join(errs...)
}
