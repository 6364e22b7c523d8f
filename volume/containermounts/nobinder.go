//go:build !linux

package containermounts

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

func unsupported(call string) error {
	return fmt.Errorf("containermounts.%s cannot work on %s: %w", call, runtime.GOOS, errors.ErrUnsupported)
}

// Binder needs Linux. Here it is for programs that are built for Linux, too: [Resolve] is
// for other systems.
type Binder struct{}

// New returns a binder that binds nothing.
func New(*volume.Host, *volume.VolumePluginMgr, Volumes) *Binder { return &Binder{} }

// Mounts always fails with an error that matches [errors.ErrUnsupported].
func (*Binder) Mounts(context.Context, types.UID, string, Options) ([]Mount, []Device, error) {
	return nil, nil, unsupported("Binder.Mounts")
}

// OCIDevices always fails with an error that matches [errors.ErrUnsupported]: an OCI
// runtime makes the devices of Linux.
func OCIDevices([]Device) ([]OCIDevice, []OCIDeviceRule, error) {
	return nil, nil, unsupported("OCIDevices")
}
