// Package podstate reads from a pod what its volumes depend on: which of them its containers
// use, and whether those have ended.
package podstate

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// UsesVolume reports whether a container of the pod mounts the volume of
// this name, or has it as a device. Init and ephemeral containers count, as with
// the kubelet (pkg/volume/util GetPodVolumeNames). The kubelet does not mount a
// volume that no container uses.
//
// A pod without any container uses all of its volumes: its caller needs the
// volumes only. UsesVolume only reads the pod.
func UsesVolume(pod *v1.Pod, volumeName string) bool {
	spec := &pod.Spec
	if len(spec.InitContainers)+len(spec.Containers)+len(spec.EphemeralContainers) == 0 {
		return true
	}
	used := false
	EachContainer(pod, func(c *v1.Container, _ string) bool {
		used = slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == volumeName }) ||
			slices.ContainsFunc(c.VolumeDevices, func(d v1.VolumeDevice) bool { return d.Name == volumeName })
		return !used
	})
	return used
}

// EachContainer calls f for the containers of a pod, init and ephemeral ones too, until
// f returns false. The field is the container's path in the pod, as in
// "spec.initContainers[0]". EachContainer does not change the pod, and f must not.
func EachContainer(pod *v1.Pod, f func(spec *v1.Container, field string) bool) {
	for i := range pod.Spec.InitContainers {
		if !f(&pod.Spec.InitContainers[i], fmt.Sprintf("spec.initContainers[%d]", i)) {
			return
		}
	}
	for i := range pod.Spec.Containers {
		if !f(&pod.Spec.Containers[i], fmt.Sprintf("spec.containers[%d]", i)) {
			return
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		common := v1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		if !f(&common, fmt.Sprintf("spec.ephemeralContainers[%d]", i)) {
			return
		}
	}
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
