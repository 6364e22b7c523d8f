package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/hostfiles"
	"github.com/podvol/podvol/volume/layout"
	"github.com/podvol/podvol/volume/validation"
)

// blockVolume is a pod's block volume whose device is local.path. Nothing is to
// be done about the device itself.
type blockVolume struct {
	volume.PodVolume
	volume.NoMetrics
	plugin *plugin
	pv     *v1.PersistentVolume // only read; nil for an unmapper
	path   string               // empty for an unmapper
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
	refused := func(err error) error { return pv.Error("NewBlockVolumeMapper", err) }
	source, err := p.Source(spec)
	if err != nil {
		return nil, refused(err)
	}
	if !spec.IsBlock() {
		return nil, refused(volume.Invalid("volumeMode", "must be Block for a device"))
	}
	if err := validation.CheckAbsolutePath("local.path", source.Path); err != nil {
		return nil, refused(err)
	}
	return &blockVolume{PodVolume: pv, plugin: p, pv: spec.PersistentVolume, path: source.Path}, nil
}

// NewBlockVolumeUnmapper implements [volume.BlockVolumePlugin].
func (p *plugin) NewBlockVolumeUnmapper(volumeName string, podUID types.UID) (volume.BlockVolumeUnmapper, error) {
	pv, err := volume.NewUnmountedPodVolume(p.Host, PluginName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &blockVolume{PodVolume: pv, plugin: p}, nil
}

// ConstructBlockVolumeSpec takes what the pod's link leads to for local.path,
// which may have been another name of the device.
func (p *plugin) ConstructBlockVolumeSpec(_ context.Context, _ types.UID, volumeName, volumePath string) (*volume.Spec, error) {
	device, err := os.Readlink(volumePath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	pv := &v1.PersistentVolume{}
	pv.Name = volumeName
	pv.Spec.Local = &v1.LocalVolumeSource{Path: device}
	pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
	return volume.NewSpecFromPersistentVolume(pv, false), nil
}

// GetGlobalMapPath returns the kubelet's directory, in which, unlike in others
// below plugins/, the plugin's name is escaped.
func (b *blockVolume) GetGlobalMapPath(*volume.Spec) (string, error) {
	return filepath.Join(b.Host.GetPluginDir(layout.EscapeQualifiedName(PluginName)), "volumeDevices", b.Name), nil
}

func (b *blockVolume) GetPodDeviceMapPath() (dir, name string) {
	return layout.GetPodVolumeDeviceDir(b.Host, b.PodUID, PluginName), b.Name
}

func (b *blockVolume) GetStagingPath() string { return "" }

func (b *blockVolume) SetUpDevice(context.Context) (string, error) { return "", nil }

// MapPodDevice returns local.path, after making sure that it is a device.
func (b *blockVolume) MapPodDevice(ctx context.Context) (string, error) {
	info, err := b.plugin.stat(ctx, b.path)
	if err == nil && info.Mode().Type() != fs.ModeDevice {
		err = volume.Invalid("local.path", "%q is a %s, a block device is needed for volumeMode Block", b.path, hostfiles.Kind(info.Mode()))
	}
	if err == nil {
		err = b.plugin.checkDisk(ctx, b.pv, true)
	}
	if err != nil {
		return "", b.Error("MapPodDevice", volume.NothingDone(err))
	}
	return b.path, nil
}

func (b *blockVolume) TearDownDevice(context.Context, string, string) error { return nil }

func (b *blockVolume) UnmapPodDevice(context.Context) error { return nil }
