package flexvolume

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/flexvolume/internal/driver"
)

// RequiresFSResize is true: NodeExpand asks the driver whether it does.
func (p *plugin) RequiresFSResize() bool { return true }

// ExpandSpec implements [volume.SpecExpander] by the driver's expandvolume. A driver without it
// leaves all to the node, as in Kubernetes.
func (p *plugin) ExpandSpec(ctx context.Context, spec *volume.Spec, size resource.Quantity) (reached resource.Quantity, node bool, err error) {
	reached, node, err = p.expandVolume(ctx, spec, size)
	return reached, node, failed("ExpandSpec", spec.Name(), err)
}

func (p *plugin) expandVolume(ctx context.Context, spec *volume.Spec, size resource.Quantity) (reached resource.Quantity, node bool, err error) {
	s, d, err := p.growing(ctx, spec)
	if err != nil {
		return size, false, err
	}
	old := spec.PersistentVolume.Spec.Capacity[v1.ResourceStorage]
	options, err := s.options(nil)
	if err != nil {
		return old, false, err
	}
	answer, err := d.Call(ctx, s.call("expandvolume", s.name, options, p.devicePlace(s).dir, bytesOf(size), bytesOf(old)))
	switch {
	case errors.Is(err, driver.ErrNotSupported):
		err = nil
	case err == nil && answer.NewSize > 0:
		reached = *resource.NewQuantity(answer.NewSize, resource.BinarySI)
		if reached.Cmp(size) < 0 {
			return reached, false, &volume.Failure{Cause: ErrDriver, Subject: d.Name, What: fmt.Sprintf("driver %s has given the volume %s, and %s are asked for", d.Name, reached.String(), size.String())}
		}
		return reached, d.Capabilities.RequiresFSResize, nil
	}
	return size, d.Capabilities.RequiresFSResize, err
}

func bytesOf(q resource.Quantity) string { return strconv.FormatInt(q.Value(), 10) }

// growing returns the source of a PersistentVolume that is to grow, and its driver.
func (p *plugin) growing(ctx context.Context, spec *volume.Spec) (*source, *driver.Driver, error) {
	s, err := p.checked(spec)
	if err == nil && s.inline {
		err = volume.Invalid("flexVolume", "is a pod's own volume, which cannot grow")
	}
	if err != nil {
		return nil, nil, err
	}
	d, err := p.drivers.Open(ctx, s.Driver)
	return s, d, err
}

// NodeExpand grows the volume's file system by the driver's expandfs. Of a driver without it, the
// node grows the file system of the volume's device, if it has one. The errors are those of
// [diskmount.Disks.Grow], and the driver's.
func (p *plugin) NodeExpand(ctx context.Context, options volume.NodeResizeOptions) (bool, error) {
	err := p.expandFS(ctx, options)
	return err == nil, failed("NodeExpand", options.VolumeSpec.Name(), err)
}

func (p *plugin) expandFS(ctx context.Context, o volume.NodeResizeOptions) error {
	s, d, err := p.growing(ctx, o.VolumeSpec)
	if err != nil || !d.Capabilities.RequiresFSResize {
		return err
	}
	options, err := s.options(nil)
	if err != nil {
		return err
	}
	_, err = d.Call(ctx, s.call("expandfs", o.DeviceMountPath, options, o.DevicePath, o.DeviceMountPath, bytesOf(o.NewSize), bytesOf(o.OldSize)))
	if !errors.Is(err, driver.ErrNotSupported) {
		return err
	}
	if !isDevice(o.DevicePath) {
		return nil
	}
	return p.disks.Grow(ctx, p.Host.GetMounter(), o.DevicePath, o.DeviceMountPath)
}
