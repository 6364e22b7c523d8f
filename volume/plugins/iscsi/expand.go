package iscsi

import (
	"context"
	"fmt"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/iscsi/internal/openiscsi"
)

// RequiresFSResize is true: a file system does not grow with its disk.
func (p *plugin) RequiresFSResize() bool { return true }

// NodeExpand has the kernel see the disk's new size, and grows its file system to all of it
// while it is mounted. It is idempotent. The disk itself is grown on the target before, by
// its administrator.
//
//   - Another disk than was staged as a block volume matches [ErrAnotherDisk].
//   - A disk that is smaller than asked for is an error, to be tried again.
//   - The others are those of [diskmount.Disks.Grow].
func (p *plugin) NodeExpand(ctx context.Context, options volume.NodeResizeOptions) (bool, error) {
	err := p.expand(ctx, options)
	return err == nil, failed("NodeExpand", options.VolumeSpec.Name(), err)
}

func (p *plugin) expand(ctx context.Context, o volume.NodeResizeOptions) error {
	s, err := p.checked(o.VolumeSpec)
	if err != nil {
		return err
	}
	found, err := p.rescan(ctx, s, o.VolumeSpec.IsBlock())
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
	return p.disks.Grow(ctx, p.Host.GetMounter(), found.Path, o.DeviceMountPath)
}

// rescan returns the disk as it is by now, which is the one of the record. That of a file system
// is below its mount; there it is the mounted disk that grows.
func (p *plugin) rescan(ctx context.Context, s *source, isBlock bool) (openiscsi.Device, error) {
	unlock, err := p.lockTarget(ctx, s.IQN)
	if err != nil {
		return openiscsi.Device{}, err
	}
	defer unlock()
	found, err := p.initiator.Rescan(ctx, s.lun)
	if err != nil || !isBlock {
		return found, err
	}
	path := p.mapPath(s)
	r, _, err := readRecord(blockRecord(path), path)
	if err == nil {
		err = r.check(found)
	}
	return found, err
}
