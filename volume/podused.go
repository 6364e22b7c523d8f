package volume

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// UsedByContainer reports whether a container of the pod mounts the volume of
// this name, or has it as a device. Init and ephemeral containers count, as with
// the kubelet (pkg/volume/util GetPodVolumeNames). The kubelet does not mount a
// volume that no container uses.
//
// A pod without any container uses all of its volumes: its caller needs the
// volumes only. UsedByContainer only reads the pod.
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

// HasEnded reports whether a pod's containers have ended for good, by the pod's
// status: its phase is Succeeded or Failed, and no container is running. The
// phase alone is not enough. A controller may set it without knowledge of the
// containers, for example if a node is lost, and the node still has the volumes
// mounted. HasEnded only reads the pod.
func HasEnded(pod *v1.Pod) bool {
	status := &pod.Status
	if status.Phase != v1.PodSucceeded && status.Phase != v1.PodFailed {
		return false
	}
	runs := func(s v1.ContainerStatus) bool { return s.State.Running != nil }
	return !slices.ContainsFunc(status.InitContainerStatuses, runs) && !slices.ContainsFunc(status.ContainerStatuses, runs) &&
		!slices.ContainsFunc(status.EphemeralContainerStatuses, runs)
}
