package volume

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// UsedByContainer reports whether a container of the pod mounts the volume of this
// name, or has it as a device: init and ephemeral containers count, as with the
// kubelet (pkg/volume/util GetPodVolumeNames), which does not mount what none does.
//
// A pod without any container uses all of its volumes: whoever hands it over wants
// the volumes, and has nothing to say of containers. It only reads the pod.
func UsedByContainer(pod *v1.Pod, volumeName string) bool {
	spec := &pod.Spec
	if len(spec.InitContainers)+len(spec.Containers)+len(spec.EphemeralContainers) == 0 {
		return true
	}
	uses := func(c v1.Container) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == volumeName }) ||
			slices.ContainsFunc(c.VolumeDevices, func(d v1.VolumeDevice) bool { return d.Name == volumeName })
	}
	return slices.ContainsFunc(spec.InitContainers, uses) || slices.ContainsFunc(spec.Containers, uses) ||
		slices.ContainsFunc(spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return uses(v1.Container(c.EphemeralContainerCommon)) })
}
