package devices

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/blockmap"
)

// Mapping is the mounter of a block volume: what it sets up is the pod's link to the device.
type Mapping struct {
	Mapper volume.BlockVolumeMapper
	// Use is what the volume needs of its node. It must be there before the set-up.
	Use *Use
	// Published is where the plugin has published the device to the pod, once it is set up.
	Published string

	table  *Table
	blocks *blockmap.Mapper
	spec   *volume.Spec
	name   string // the volume's in the pod
	place  blockmap.Place
	device string // links resolved; empty until it is known
}

var _ volume.Mounter = (*Mapping)(nil)

// NewMapping returns the mounter of a pod's block volume, without I/O.
func (t *Table) NewMapping(blocks *blockmap.Mapper, plugin volume.VolumePlugin, spec *volume.Spec, pod *v1.Pod, name string) (*Mapping, error) {
	able, err := BlockPlugin(plugin, spec)
	if err != nil {
		return nil, err
	}
	mapper, err := able.NewBlockVolumeMapper(spec, pod)
	if err != nil {
		return nil, err
	}
	place, err := blockmap.PlaceOf(mapper, spec, pod.UID)
	if err != nil {
		return nil, err
	}
	return &Mapping{Mapper: mapper, table: t, blocks: blocks, spec: spec, name: name, place: place}, nil
}

// GetPath implements [volume.Volume].
func (m *Mapping) GetPath() string { return m.place.Link }

// GetMetrics implements [volume.Volume].
func (m *Mapping) GetMetrics(context.Context) (*volume.Metrics, error) {
	return nil, volume.ErrMetricsUnsupported
}

// GetAttributes implements [volume.Mounter]. A device has no files to be given to a group.
func (m *Mapping) GetAttributes() volume.Attributes { return volume.Attributes{} }

// RefreshAfter implements [volume.Refresher]: the mapper's.
func (m *Mapping) RefreshAfter() time.Time { return volume.RefreshAfter(m.Mapper) }

// SetUp implements [volume.Mounter].
func (m *Mapping) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// SetUpAt publishes the device, which is staged, to the pod. Each step finds
// what an earlier attempt has done. A device has one place only.
func (m *Mapping) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	if dir != m.place.Link {
		return volume.Invalid(dir, "is not the place of a block volume's device, %s", m.place.Link)
	}
	published, err := m.Mapper.MapPodDevice(ctx)
	if err != nil {
		return m.Use.Failed("MapPodDevice", m.spec, err)
	}
	if published == "" {
		published = m.table.AttachedAt(m.Use)
	}
	if published == "" {
		return m.Use.Failed("MapPodDevice", m.spec, errors.New("device path of the volume is empty"))
	}
	if m.device, err = m.blocks.Publish(ctx, m.name, m.place, published); err != nil {
		return m.Use.Failed("MapBlockVolume", m.spec, err)
	}
	m.Published = published
	return nil
}

// Mapped is what the confirmation says of the volume; nil for a nil Mapping.
func (m *Mapping) Mapped() *mountrecord.MappedDevice {
	if m == nil {
		return nil
	}
	return &mountrecord.MappedDevice{Node: m.device, Bind: m.place.Bind}
}

// Unmap takes the device from the pod: a Mapping's steps in reverse, each
// of which succeeds where nothing is left to be done.
func Unmap(ctx context.Context, blocks *blockmap.Mapper, plugin volume.VolumePlugin, spec *volume.Spec, podUID types.UID) error {
	able, err := BlockPlugin(plugin, spec)
	if err != nil {
		return volume.NothingDone(err)
	}
	unmapper, err := able.NewBlockVolumeUnmapper(spec.Name(), podUID)
	if err != nil {
		return err
	}
	place, err := blockmap.PlaceOf(unmapper, spec, podUID)
	if err != nil {
		return err
	}
	if err := blocks.Withdraw(ctx, place); err != nil {
		return err
	}
	return unmapper.UnmapPodDevice(ctx)
}
