package iscsi

import (
	"context"
	"errors"
	"fmt"

	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/iscsi/internal/openiscsi"
)

// RequiresFSResize is true: a file system does not grow with its disk.
func (p *plugin) RequiresFSResize() bool { return true }

// NodeExpand has the kernel see the disk's new size, and grows its file system to all of it
// while it is mounted. It is idempotent. The disk itself is grown on the target before, by
// its administrator.
//
//   - A disk that is smaller than asked for is an error, to be tried again.
//   - A type that cannot grow here, and a missing program, match [volume.ErrResizeInfeasible].
//   - A kernel that refuses to grow a mounted file system matches [volume.ErrResizeInUse].
func (p *plugin) NodeExpand(ctx context.Context, options volume.NodeResizeOptions) (bool, error) {
	err := p.expand(ctx, options)
	return err == nil, failed("NodeExpand", options.VolumeSpec.Name(), err)
}

func (p *plugin) expand(ctx context.Context, o volume.NodeResizeOptions) error {
	s, err := p.checked(o.VolumeSpec)
	if err != nil {
		return err
	}
	found, err := p.initiator.Rescan(ctx, s.lun)
	if err != nil {
		return volume.NothingDone(err)
	}
	if found.Size < o.NewSize.Value() {
		return volume.NothingDone(&volume.Failure{Cause: openiscsi.ErrNoDisk, Subject: s.volumeName(),
			What: fmt.Sprintf("%s has %d bytes, and %d are asked for", s.volumeName(), found.Size, o.NewSize.Value()), Next: "grow the disk on its target"})
	}
	if o.VolumeSpec.IsBlock() {
		return nil
	}
	if o.DeviceMountPath == "" {
		return volume.NothingDone(volume.Invalid("DeviceMountPath", "the place of the file system is needed to grow it"))
	}
	_, err = p.formatter().Resize(ctx, found.Path, o.DeviceMountPath)
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
