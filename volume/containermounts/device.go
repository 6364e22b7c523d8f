package containermounts

import (
	"errors"
	"fmt"

	"github.com/podvol/podvol/volume"
)

func (c *container) deviceField(i int) string { return fmt.Sprintf("%s.volumeDevices[%d]", c.field, i) }

// devices are the container's raw devices. The slot of such a volume has the
// pod's link to the device for a path.
func (c *container) devices() ([]Device, error) {
	var devices []Device
	var errs []error
	for i, asked := range c.spec.VolumeDevices {
		v, err := c.places.mountedVolume(c.pod, asked.Name)
		if err == nil && !v.isBlock() {
			err = v.failed(volume.Invalid(c.deviceField(i)+".name", "volume %q is a file system; use volumeMounts for it", asked.Name))
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		d := Device{Volume: asked.Name, Source: v.record.Path, Destination: inContainer(asked.DevicePath), Permissions: "rwm"}
		if v.readOnly() {
			d.Permissions = "r"
		}
		devices = append(devices, d)
	}
	return devices, errors.Join(errs...)
}
