package rbd

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/layout"
	"github.com/podvol/podvol/volume/plugins/rbd/internal/krbd"
)

// blockVolume is a pod's block volume.
type blockVolume struct {
	volume.PodVolume
	volume.NoMetrics
	plugin *plugin
	source *source // nil for an unmapper
}

var (
	_ volume.BlockVolumeMapper   = (*blockVolume)(nil)
	_ volume.BlockVolumeUnmapper = (*blockVolume)(nil)
)

// NewBlockVolumeMapper implements [volume.BlockVolumePlugin].
func (p *plugin) NewBlockVolumeMapper(spec *volume.Spec, pod *v1.Pod) (volume.BlockVolumeMapper, error) {
	pv, err := volume.NewPodVolume(p.Host, PluginName, spec, pod)
	if err != nil {
		return nil, err
	}
	s, err := p.checked(spec)
	if err == nil && !spec.IsBlock() {
		err = volume.Invalid("volumeMode", "must be Block for a device")
	}
	if err != nil {
		return nil, pv.Error("NewBlockVolumeMapper", err)
	}
	return &blockVolume{PodVolume: pv, plugin: p, source: s}, nil
}

// NewBlockVolumeUnmapper implements [volume.BlockVolumePlugin].
func (p *plugin) NewBlockVolumeUnmapper(volumeName string, podUID types.UID) (volume.BlockVolumeUnmapper, error) {
	pv, err := volume.NewUnmountedPodVolume(p.Host, PluginName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &blockVolume{PodVolume: pv, plugin: p}, nil
}

// ConstructBlockVolumeSpec finds the image by the bind that the pod has in the image's directory,
// if it has one only.
func (p *plugin) ConstructBlockVolumeSpec(_ context.Context, podUID types.UID, volumeName, _ string) (*volume.Spec, error) {
	places, err := filepath.Glob(filepath.Join(p.blockDir(), "*", string(podUID)))
	if err != nil {
		return nil, err
	}
	place := ""
	if len(places) == 1 {
		place = filepath.Dir(places[0])
	}
	return p.constructed(volumeName, place, v1.PersistentVolumeBlock)
}

func (b *blockVolume) GetGlobalMapPath(spec *volume.Spec) (string, error) {
	s, err := b.plugin.checked(spec)
	if err != nil {
		return "", err
	}
	return b.plugin.mapPath(s), nil
}

func (b *blockVolume) GetPodDeviceMapPath() (dir, name string) {
	return layout.GetPodVolumeDeviceDir(b.Host, b.PodUID, PluginName), b.Name
}

func (b *blockVolume) GetStagingPath() string { return "" }

// SetUpDevice maps the image. An image that is mapped stays so, whatever became of its key since.
func (b *blockVolume) SetUpDevice(ctx context.Context) (string, error) {
	return "", b.Error("SetUpDevice", b.setUp(ctx))
}

func (b *blockVolume) setUp(ctx context.Context) error {
	p, place := b.plugin, b.plugin.mapPath(b.source)
	unlock, err := p.lock(ctx, place)
	if err != nil {
		return err
	}
	defer unlock()
	st := &staging{plugin: p, source: b.source, file: p.recordFile(place), place: place}
	mapped, err := st.isMapped()
	if err != nil || mapped {
		return volume.NothingDone(err)
	}
	if err := st.readKey(ctx, b.Pod.Namespace); err != nil {
		return err
	}
	if _, err := st.mapImage(ctx, true); err != nil {
		return st.undo(ctx, err)
	}
	return nil
}

// isMapped reports whether the image is a block volume of this node already, by whatever key, and
// read-only or not as asked for.
func (st *staging) isMapped() (bool, error) {
	r, ok, err := readRecord(st.file)
	if err != nil || !ok || !r.Block || r.ReadOnly != st.source.deviceReadOnly {
		return false, err
	}
	_, mapped, err := st.plugin.client.Find(r.Token)
	return mapped, err
}

// MapPodDevice returns the disk that SetUpDevice has mapped.
func (b *blockVolume) MapPodDevice(context.Context) (string, error) {
	d, err := b.plugin.mapped(b.plugin.mapPath(b.source))
	return d.Path, b.Error("MapPodDevice", volume.NothingDone(err))
}

// mapped is the disk that a place has.
func (p *plugin) mapped(place string) (d krbd.Device, err error) {
	r, ok, err := readRecord(p.recordFile(place))
	if err != nil {
		return d, err
	}
	if ok {
		d, ok, err = p.client.Find(r.Token)
	}
	if err == nil && !ok {
		err = fmt.Errorf("the image of %s is not mapped: %w", filepath.Base(place), fs.ErrNotExist)
	}
	return d, err
}

func (b *blockVolume) UnmapPodDevice(context.Context) error { return nil }

// TearDownDevice unmaps the image, as UnmountDevice does.
func (b *blockVolume) TearDownDevice(ctx context.Context, mapPath, _ string) error {
	return b.Error("TearDownDevice", b.tearDown(ctx, mapPath))
}

func (b *blockVolume) tearDown(ctx context.Context, mapPath string) error {
	p := b.plugin
	if !p.isPlace(mapPath) {
		return volume.Invalid("mapPath", "%q is no directory of this plugin's", mapPath)
	}
	unlock, err := p.lock(ctx, mapPath)
	if err != nil {
		return err
	}
	defer unlock()
	return p.unstage(ctx, mapPath)
}
