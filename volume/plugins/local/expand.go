package local

import (
	"context"

	"github.com/podvol/podvol/volume"
)

var _ volume.NodeExpandableVolumePlugin = (*plugin)(nil)

// RequiresFSResize is true: the file system of a device does not grow with it by itself.
func (p *plugin) RequiresFSResize() bool { return true }

// NodeExpand grows the file system of a device to all of the device, while it is mounted. For a
// directory, and for a block volume, there is nothing to do. It is idempotent.
// Its errors are those of [diskmount.Disks.Grow].
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
	if err := p.checkDisk(ctx, o.VolumeSpec.PersistentVolume, true); err != nil {
		return volume.NothingDone(err)
	}
	return p.disks.Grow(ctx, p.Host.GetMounter(), source.Path, o.DeviceMountPath)
}
