package csi

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/podvol/podvol/volume"
)

// RequiresFSResize is true: a driver may have to act on the node.
func (p *Plugin) RequiresFSResize() bool { return true }

// NodeExpand has the driver grow the volume by NodeExpandVolume. It returns true without
// a call if the driver has nothing to do on the node.
//
//   - The error matches [volume.ErrResizeInUse] if the volume cannot grow while it is in
//     use (FailedPrecondition).
//   - It matches [volume.ErrResizeInfeasible] if the size or the volume is refused
//     (InvalidArgument, OutOfRange, NotFound).
func (p *Plugin) NodeExpand(ctx context.Context, options volume.NodeResizeOptions) (bool, error) {
	done, err := p.expand(ctx, options)
	return done, failed("NodeExpand", options.VolumeSpec.Name(), err)
}

func (p *Plugin) expand(ctx context.Context, o volume.NodeResizeOptions) (bool, error) {
	source, err := p.checkedSource(o.VolumeSpec)
	if err != nil {
		return false, err
	}
	w := &wish{spec: o.VolumeSpec, source: source}
	d, s, err := p.prepare(ctx, w)
	if err != nil {
		return false, err
	}
	if !s.has(csi.NodeServiceCapability_RPC_EXPAND_VOLUME) {
		return true, nil
	}
	r := &csi.NodeExpandVolumeRequest{VolumeId: source.handle, VolumePath: o.DeviceMountPath, StagingTargetPath: o.DeviceStagePath,
		CapacityRange: &csi.CapacityRange{RequiredBytes: o.NewSize.Value()}}
	if o.VolumeSpec.IsBlock() || r.VolumePath == "" {
		r.VolumePath = o.DevicePath
	}
	if r.VolumePath == "" {
		return false, volume.Invalid("DeviceMountPath", "the place of the volume is needed to grow it")
	}
	if r.VolumeCapability, err = w.capability(s); err != nil {
		return false, err
	}
	if r.Secrets, err = p.secretsOf(ctx, source.expand, "NodeExpandVolume"); err != nil {
		return false, err
	}
	err = p.do(ctx, call{driver: d, method: "NodeExpandVolume", volume: r.VolumeId, secret: valuesOf(r.Secrets)}, func(ctx context.Context, s *session) error {
		_, err := s.node.NodeExpandVolume(ctx, r)
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
	return false, err
}
