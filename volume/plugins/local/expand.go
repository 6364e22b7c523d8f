package local

import (
	"context"
	"errors"
	"fmt"

	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/volume"
)

var _ volume.NodeExpandableVolumePlugin = (*plugin)(nil)

// RequiresFSResize is true: the file system of a device does not grow with it by itself.
func (p *plugin) RequiresFSResize() bool { return true }

// NodeExpand grows the file system of a device to all of the device, while it is mounted. For a
// directory, and for a block volume, there is nothing to do. It is idempotent.
//
//   - A type that cannot grow here, and a missing program, match [volume.ErrResizeInfeasible].
//   - A kernel that refuses to grow a mounted file system, as it does with ext4 and an agent
//     without CAP_SYS_RESOURCE, matches [volume.ErrResizeInUse].
func (p *plugin) NodeExpand(ctx context.Context, options volume.NodeResizeOptions) (bool, error) {
	err := p.expand(ctx, options)
	return err == nil, (&device{p}).failed("NodeExpand", options.VolumeSpec, err)
}

func (p *plugin) expand(ctx context.Context, o volume.NodeResizeOptions) error {
	source, err := p.Source(o.VolumeSpec)
	if err != nil || o.VolumeSpec.IsBlock() {
		return err
	}
	if isDevice, err := p.isDevice(ctx, source.Path); err != nil || !isDevice {
		return volume.NothingDone(err)
	}
	if o.DeviceMountPath == "" {
		return volume.NothingDone(volume.Invalid("DeviceMountPath", "the place of the file system is needed to grow it"))
	}
	if err := p.checkDisk(ctx, o.VolumeSpec.PersistentVolume, true); err != nil {
		return volume.NothingDone(err)
	}
	_, err = p.formatter().Resize(ctx, source.Path, o.DeviceMountPath)
	failed, ok := errors.AsType[*format.Error](err)
	switch {
	case !ok:
		return err
	case errors.Is(err, format.ErrNotSupported), errors.Is(err, format.ErrToolMissing):
		return volume.NothingDone(fmt.Errorf("%w: %w", volume.ErrResizeInfeasible, failed))
	case failed.IsRefusedOnline():
		return volume.NothingDone(fmt.Errorf("%w: %w", volume.ErrResizeInUse, failed))
	}
	return err
}
