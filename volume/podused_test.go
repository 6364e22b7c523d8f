package volume_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
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
			if got, want := volume.UsedByContainer(pod, "v"), use == "mount" || use == "device"; got != want {
				t.Errorf("%s, %s: %t", kind, use, got)
			}
		}
	}
	if !volume.UsedByContainer(&v1.Pod{}, "v") {
		t.Error("a pod without containers does not use its volume")
	}
}
