package rbd

import (
	"context"
	"fmt"

	"github.com/podvol/podvol/volume"
)

// RequiresFSResize is true: a file system does not grow with its image.
func (p *plugin) RequiresFSResize() bool { return true }

// NodeExpand grows the file system of an image to all of it while it is mounted. It is
// idempotent. The image itself is grown in its cluster before (rbd resize), while no node has
// it: an image that is smaller than asked for is an error, to be tried again. The
// others are those of [diskmount.Disks.Grow].
func (p *plugin) NodeExpand(ctx context.Context, options volume.NodeResizeOptions) (bool, error) {
	err := p.expand(ctx, options)
	return err == nil, failed("NodeExpand", options.VolumeSpec.Name(), err)
}

func (p *plugin) expand(ctx context.Context, o volume.NodeResizeOptions) error {
	s, err := p.checked(o.VolumeSpec)
	if err != nil {
		return err
	}
	found, err := p.mapped(p.devicePath(s))
	if err != nil {
		return volume.NothingDone(err)
	}
	if found.Size < o.NewSize.Value() {
		return volume.NothingDone(fmt.Errorf("%s has %d bytes, and %d are asked for: grow the image in its cluster (rbd resize), while no pod has it", s.volumeName(), found.Size, o.NewSize.Value()))
	}
	if o.VolumeSpec.IsBlock() {
		return nil
	}
	return p.disks.Grow(ctx, p.Host.GetMounter(), found.Path, o.DeviceMountPath)
}
