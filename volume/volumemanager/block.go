package volumemanager

import (
	"context"
	"errors"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/blockmap"
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
)

// mapping is the mounter of a block volume: what it sets up is the pod's link to the device.
type mapping struct {
	of       *setUp
	executor *operationExecutor
	mapper   volume.BlockVolumeMapper
	place    blockmap.Place
	device   string // links resolved; empty until it is known
}

var _ volume.Mounter = (*mapping)(nil)

func (o *operationExecutor) newMapping(u *setUp) (volume.Mounter, error) {
	able, err := devices.BlockPlugin(u.plugin, u.spec)
	if err != nil {
		return nil, err
	}
	mapper, err := able.NewBlockVolumeMapper(u.spec, u.pod)
	if err != nil {
		return nil, err
	}
	place, err := blockmap.PlaceOf(mapper, u.spec, u.pod.UID)
	if err != nil {
		return nil, err
	}
	u.mapping = &mapping{of: u, executor: o, mapper: mapper, place: place}
	return u.mapping, nil
}

// GetPath implements [volume.Volume].
func (m *mapping) GetPath() string { return m.place.Link }

// GetMetrics implements [volume.Volume].
func (m *mapping) GetMetrics(context.Context) (*volume.Metrics, error) {
	return nil, volume.ErrMetricsUnsupported
}

// GetAttributes implements [volume.Mounter]. A device has no files to be given to a group.
func (m *mapping) GetAttributes() volume.Attributes { return volume.Attributes{} }

// RefreshAfter implements [volume.Refresher]: the mapper's.
func (m *mapping) RefreshAfter() time.Time { return volume.RefreshAfter(m.mapper) }

// SetUp implements [volume.Mounter].
func (m *mapping) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// SetUpAt publishes the device, which is staged, to the pod. Each step finds
// what an earlier attempt has done. A device has one place only.
func (m *mapping) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	u := m.of
	if dir != m.place.Link {
		return volume.Invalid(dir, "is not the place of a block volume's device, %s", m.place.Link)
	}
	published, err := m.mapper.MapPodDevice(ctx)
	if err != nil {
		return u.device.Failed("MapPodDevice", u.spec, err)
	}
	if published == "" {
		published = m.executor.needs.devices.AttachedAt(u.device)
	}
	if published == "" {
		return u.device.Failed("MapPodDevice", u.spec, errors.New("device path of the volume is empty"))
	}
	if m.device, err = m.executor.blocks.Publish(ctx, u.record.Volumes[0], m.place, published); err != nil {
		return u.device.Failed("MapBlockVolume", u.spec, err)
	}
	return nil
}

// mapped is what the confirmation says of a block volume.
func (m *mapping) mapped() *mountrecord.MappedDevice {
	return &mountrecord.MappedDevice{Node: m.device, Bind: m.place.Bind}
}

// unmapDevice takes the device from the pod: mapDevice's steps in reverse, each
// of which succeeds where nothing is left to be done.
func (o *operationExecutor) unmapDevice(ctx context.Context, was actualVolume, plugin volume.VolumePlugin) error {
	spec := was.record.Spec()
	able, err := devices.BlockPlugin(plugin, spec)
	if err != nil {
		return volume.NothingDone(err)
	}
	unmapper, err := able.NewBlockVolumeUnmapper(was.key.Spec, was.key.PodUID)
	if err != nil {
		return err
	}
	place, err := blockmap.PlaceOf(unmapper, spec, was.key.PodUID)
	if err != nil {
		return err
	}
	if err := o.blocks.Withdraw(ctx, place); err != nil {
		return err
	}
	return unmapper.UnmapPodDevice(ctx)
}
