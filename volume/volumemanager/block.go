package volumemanager

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/blockmap"
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
	"github.com/podvol/podvol/volume/volumesource"
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

// rebuildBlock makes a record from a pod's link to a device. Which device that
// is, is known by today's name only, so the source counts as guessed.
func (v *recovery) rebuildBlock(ctx context.Context, key rootdir.Key, plugin volume.VolumePlugin) (*mountrecord.Record, error) {
	link := rootdir.DeviceLink(v.host, key)
	able, ok := volume.AsBlock(plugin)
	if !ok {
		return nil, volume.Invalid(link, "%s has no block volumes, so this is none of podvol's", key.Plugin)
	}
	spec, err := able.ConstructBlockVolumeSpec(ctx, key.PodUID, key.Spec, link)
	if err != nil {
		return nil, err
	}
	if !spec.IsBlock() {
		return nil, volume.Invalid(link, "%s rebuilt a file system from it", key.Plugin)
	}
	return &mountrecord.Record{
		PodUID: key.PodUID, Volumes: []string{key.Spec}, Plugin: key.Plugin, Path: link,
		Source: volumesource.Describe(plugin, spec), PersistentVolume: spec.PersistentVolume, ReadOnly: spec.ReadOnly,
		Rebuilt: true, Guessed: true,
	}, nil
}

// foundDevice is the mapped device of a rebuilt block volume; nil for file
// systems.
func (v *recovery) foundDevice(record *mountrecord.Record) (*mountrecord.MappedDevice, error) {
	spec := record.Spec()
	if !spec.IsBlock() {
		return nil, nil
	}
	plugin, err := v.plugins.FindPluginByName(record.Plugin)
	if err != nil {
		return nil, err
	}
	use, err := devices.Of(plugin, spec, record.PodUID)
	if err != nil {
		return nil, err
	}
	node, err := os.Readlink(record.Path)
	if err != nil {
		return nil, err
	}
	return &mountrecord.MappedDevice{Node: node, Bind: use.Bind(record.PodUID)}, nil
}
