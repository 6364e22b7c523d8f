package volumemanager

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// checkMode refuses a container that mounts what is a device, or has as a device
// what is a file system. The names are the pod's, all of the same volume.
func checkMode(pod *v1.Pod, names []string, spec *volume.Spec) error {
	for _, name := range names {
		for c := range everyContainer(pod) {
			if err := checkUse(c, name, spec); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkUse(c containerUse, name string, spec *volume.Spec) error {
	if spec.IsBlock() {
		for i, m := range c.mounts {
			if m.Name == name {
				return volume.Invalid(fmt.Sprintf("volumeMounts[%d] of container %q", i, c.name),
					"volume %q is a block device (PersistentVolume %s has volumeMode Block); list it under volumeDevices, or use a claim of volumeMode Filesystem", name, spec.Name())
			}
		}
		return nil
	}
	for i, d := range c.devices {
		if d.Name == name {
			return volume.Invalid(fmt.Sprintf("volumeDevices[%d] of container %q", i, c.name),
				"volume %q is a file system; list it under volumeMounts, or use a claim of volumeMode Block", name)
		}
	}
	return nil
}

// containerUse is what a container of any kind has of the pod's volumes.
type containerUse struct {
	name     string
	mounts   []v1.VolumeMount
	devices  []v1.VolumeDevice
	security *v1.SecurityContext
}

// everyContainer goes through the pod's init containers, containers and
// ephemeral containers.
func everyContainer(pod *v1.Pod) func(yield func(containerUse) bool) {
	return func(yield func(containerUse) bool) {
		for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				c := &list[i]
				if !yield(containerUse{c.Name, c.VolumeMounts, c.VolumeDevices, c.SecurityContext}) {
					return
				}
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			c := &pod.Spec.EphemeralContainers[i]
			if !yield(containerUse{c.Name, c.VolumeMounts, c.VolumeDevices, c.SecurityContext}) {
				return
			}
		}
	}
}
