package csi

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
)

// RequiresFSResize is true: a driver may have to act on the node.
func (p *Plugin) RequiresFSResize() bool { return true }

// NodeExpand has the driver grow the volume by NodeExpandVolume. It returns true without
// a call if the driver has nothing to do on the node.
//
//   - It returns false without a call if the driver does not stage, and the volume is not
//     published yet: it is nowhere then.
//   - The error matches [volume.ErrResizeInUse] if the volume cannot grow while it is in
//     use (FailedPrecondition).
//   - It matches [volume.ErrResizeInfeasible] if the size or the volume is refused
//     (InvalidArgument, OutOfRange, NotFound).
//   - It matches [volume.ErrResizeFailed] after every other refusal.
func (p *Plugin) NodeExpand(ctx context.Context, options volume.NodeResizeOptions) (bool, error) {
	done, err := p.expand(ctx, options)
	return done, csivolume.Failed("NodeExpand", options.VolumeSpec.Name(), err)
}

func (p *Plugin) expand(ctx context.Context, o volume.NodeResizeOptions) (bool, error) {
	source, err := csivolume.Checked(&p.Kind, o.VolumeSpec)
	if err != nil {
		return false, err
	}
	w := &volumeRequest{spec: o.VolumeSpec, source: source}
	d, s, err := p.prepare(ctx, w)
	if err != nil {
		return false, err
	}
	if !s.Has(csi.NodeServiceCapability_RPC_EXPAND_VOLUME) {
		return true, nil
	}
	if !s.Has(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		if o.DeviceStagePath != "" && o.DeviceMountPath == o.DeviceStagePath {
			return false, nil
		}
		o.DeviceStagePath = ""
	}
	r := &csi.NodeExpandVolumeRequest{VolumeId: source.Handle, VolumePath: o.DeviceMountPath, StagingTargetPath: o.DeviceStagePath,
		CapacityRange: &csi.CapacityRange{RequiredBytes: o.NewSize.Value()}}
	if o.VolumeSpec.IsBlock() || r.VolumePath == "" {
		r.VolumePath = o.DevicePath
	}
	if o.NewSize.Sign() < 0 {
		return false, volume.Invalid("NewSize", "must not be negative: %v", &o.NewSize)
	}
	if r.VolumePath == "" {
		return false, volume.Invalid("DeviceMountPath", "the place of the volume is needed to grow it")
	}
	if r.VolumeCapability, err = w.capability(s); err != nil {
		return false, err
	}
	if r.Secrets, err = csivolume.Secrets(ctx, p.Host, source.NodeExpand, "NodeExpandVolume"); err != nil {
		return false, err
	}
	err = p.drivers.Do(ctx, drivers.Call{Driver: d, Method: "NodeExpandVolume", Volume: r.VolumeId, Secret: csivolume.ValuesOf(r.Secrets), Migrated: w.spec.Migrated}, func(ctx context.Context, s *drivers.Session) error {
		_, err := s.Node.NodeExpandVolume(ctx, r)
		return err
	})
	switch status.Code(err) {
	case codes.OK:
		return true, nil
	case codes.FailedPrecondition:
		return false, fmt.Errorf("%w: %w", volume.ErrResizeInUse, err)
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		return false, fmt.Errorf("%w: %w", volume.ErrResizeInfeasible, err)
	}
	if errors.Is(err, drivers.ErrRefused) {
		return false, fmt.Errorf("%w: %w", volume.ErrResizeFailed, err)
	}
	return false, err
}
