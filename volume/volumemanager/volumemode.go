package volumemanager

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// checkMode refuses a container that mounts what is a device, or has as a device
// what is a file system. The names are the pod's, all of the same volume.
func checkMode(pod *v1.Pod, names []string, spec *volume.Spec) (err error) {
	volume.EachContainer(pod, func(c *v1.Container, _ string) bool {
		err = checkUse(c, names, spec)
		return err == nil
	})
	return err
}

func checkUse(c *v1.Container, names []string, spec *volume.Spec) error {
	for i, m := range c.VolumeMounts {
		if spec.IsBlock() && slices.Contains(names, m.Name) {
			return volume.Invalid(fmt.Sprintf("volumeMounts[%d] of container %q", i, c.Name),
				"volume %q is a block device (PersistentVolume %s has volumeMode Block); list it under volumeDevices, or use a claim of volumeMode Filesystem", m.Name, spec.Name())
		}
	}
	for i, d := range c.VolumeDevices {
		if !spec.IsBlock() && slices.Contains(names, d.Name) {
			return volume.Invalid(fmt.Sprintf("volumeDevices[%d] of container %q", i, c.Name),
				"volume %q is a file system; list it under volumeMounts, or use a claim of volumeMode Block", d.Name)
		}
	}
	return nil
}
