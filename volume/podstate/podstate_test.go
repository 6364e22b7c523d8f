package podstate_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/podstate"
)

// As the kubelet's GetPodVolumeNames, over all kinds of containers and of use.
func TestUsedByContainer(t *testing.T) {
	mounts := []v1.VolumeMount{{Name: "other", MountPath: "/o"}, {Name: "v", MountPath: "/v"}}
	devices := []v1.VolumeDevice{{Name: "other", DevicePath: "/dev/o"}, {Name: "v", DevicePath: "/dev/v"}}
	containers := map[string][]v1.Container{
		"mount":   {{Name: "a"}, {Name: "b", VolumeMounts: mounts}},
		"device":  {{Name: "a"}, {Name: "b", VolumeDevices: devices}},
		"another": {{Name: "a", VolumeMounts: mounts[:1], VolumeDevices: devices[:1]}},
		"none":    {{Name: "a"}},
	}
	kinds := map[string]func(*v1.PodSpec, []v1.Container){
		"containers":      func(s *v1.PodSpec, c []v1.Container) { s.Containers = c },
		"init containers": func(s *v1.PodSpec, c []v1.Container) { s.InitContainers = c },
		"ephemeral containers": func(s *v1.PodSpec, c []v1.Container) {
			for _, one := range c {
				s.EphemeralContainers = append(s.EphemeralContainers, v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon(one)})
			}
		},
	}
	for kind, put := range kinds {
		for use, list := range containers {
			pod := &v1.Pod{}
			put(&pod.Spec, list)
			if got, want := podstate.UsesVolume(pod, "v"), use == "mount" || use == "device"; got != want {
				t.Errorf("%s, %s: %t", kind, use, got)
			}
		}
	}
	if !podstate.UsesVolume(&v1.Pod{}, "v") {
		t.Error("a pod without containers does not use its volume")
	}
}

// A pod has ended by its phase, unless a container of any kind runs.
func TestHasEnded(t *testing.T) {
	running := []v1.ContainerStatus{{}, {State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}
	gone := []v1.ContainerStatus{{}, {State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}}}
	kinds := map[string]func(*v1.PodStatus, []v1.ContainerStatus){
		"containers":           func(s *v1.PodStatus, all []v1.ContainerStatus) { s.ContainerStatuses = all },
		"init containers":      func(s *v1.PodStatus, all []v1.ContainerStatus) { s.InitContainerStatuses = all },
		"ephemeral containers": func(s *v1.PodStatus, all []v1.ContainerStatus) { s.EphemeralContainerStatuses = all },
	}
	for kind, put := range kinds {
		for _, phase := range []v1.PodPhase{"", v1.PodPending, v1.PodRunning, v1.PodUnknown, v1.PodSucceeded, v1.PodFailed} {
			terminal := phase == v1.PodSucceeded || phase == v1.PodFailed
			pod := &v1.Pod{Status: v1.PodStatus{Phase: phase}}
			if podstate.HasEnded(pod) != terminal {
				t.Errorf("phase %q alone: %v", phase, !terminal)
			}
			if put(&pod.Status, gone); podstate.HasEnded(pod) != terminal {
				t.Errorf("phase %q, %s gone: %v", phase, kind, !terminal)
			}
			if put(&pod.Status, running); podstate.HasEnded(pod) {
				t.Errorf("phase %q, %s run: it has ended", phase, kind)
			}
		}
	}
}
