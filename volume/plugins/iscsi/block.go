package iscsi

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/layout"
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

// ConstructBlockVolumeSpec finds the directory of the volume by the bind that the pod has in
// it, and reads the names of portal, target and LUN from its path.
func (p *plugin) ConstructBlockVolumeSpec(_ context.Context, podUID types.UID, volumeName, _ string) (*volume.Spec, error) {
	pv := &v1.PersistentVolume{}
	pv.Name = volumeName
	pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
	pv.Spec.ISCSI = &v1.ISCSIPersistentVolumeSource{}
	places, err := placesIn(p.blockDir())
	if err != nil {
		return nil, err
	}
	var of []named
	for _, place := range places {
		n, ok := parsePath(place)
		if !ok {
			continue
		}
		_, err := os.Lstat(filepath.Join(place, string(podUID)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err == nil && p.isOf(place, volumeName) {
			of = append(of, n)
		}
	}
	if len(of) == 1 {
		pv.Spec.ISCSI = of[0].spec(volumeName)
	}
	return volume.NewSpecFromPersistentVolume(pv, false), nil
}

// isOf reports whether the record of a block volume, if there is one, has this name.
func (p *plugin) isOf(mapPath, volumeName string) bool {
	r, ok, err := readRecord(blockRecord(mapPath), mapPath)
	return ok && err == nil && (r.VolName == "" || r.VolName == volumeName)
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

// SetUpDevice logs in, unless there are sessions.
func (b *blockVolume) SetUpDevice(ctx context.Context) (string, error) {
	return "", b.Error("SetUpDevice", b.setUp(ctx))
}

func (b *blockVolume) setUp(ctx context.Context) error {
	p, s, path := b.plugin, b.source, b.plugin.mapPath(b.source)
	unlock, err := p.lockTarget(ctx, s.IQN)
	if err != nil {
		return err
	}
	defer unlock()
	chap, err := p.chap(ctx, s, b.Pod.Namespace)
	if err != nil {
		return volume.NothingDone(err)
	}
	a := &attach{plugin: p, source: s, name: b.Name, file: blockRecord(path), place: path}
	if _, err := a.login(ctx, chap); err != nil {
		return a.undo(ctx, err, func(context.Context) error { return nil }, p.removeParents)
	}
	return nil
}

// MapPodDevice returns the disk, whatever its name is by now, if it is the one that SetUpDevice
// has found.
func (b *blockVolume) MapPodDevice(ctx context.Context) (string, error) {
	path, err := b.mapDevice(ctx)
	return path, b.Error("MapPodDevice", volume.NothingDone(err))
}

func (b *blockVolume) mapDevice(ctx context.Context) (string, error) {
	path := b.plugin.mapPath(b.source)
	r, _, err := readRecord(blockRecord(path), path)
	if err != nil {
		return "", err
	}
	found, err := b.plugin.initiator.Find(ctx, b.source.lun)
	if err == nil {
		err = r.check(found)
	}
	if err != nil {
		return "", err
	}
	return found.Path, nil
}

func (b *blockVolume) UnmapPodDevice(context.Context) error { return nil }

// TearDownDevice gives the disk back, as UnmountDevice does.
func (b *blockVolume) TearDownDevice(ctx context.Context, mapPath, _ string) error {
	return b.Error("TearDownDevice", b.tearDown(ctx, mapPath))
}

func (b *blockVolume) tearDown(ctx context.Context, mapPath string) error {
	of, ok := parsePath(mapPath)
	if !ok {
		return volume.Invalid("mapPath", "%q is no directory of this plugin's", mapPath)
	}
	unlock, err := b.plugin.lockTarget(ctx, of.iqn)
	if err != nil {
		return err
	}
	defer unlock()
	return b.plugin.tearDownDevice(ctx, mapPath)
}

// tearDownDevice undoes SetUpDevice. The caller has the target's lock.
func (p *plugin) tearDownDevice(ctx context.Context, mapPath string) error {
	if err := p.logout(ctx, blockRecord(mapPath), mapPath, false); err != nil {
		return err
	}
	return p.removeParents(mapPath)
}
