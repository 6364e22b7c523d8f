package csi

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/layout"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
)

// blockVolume is a block volume of a pod.
type blockVolume struct {
	volume.PodVolume
	plugin *Plugin
	// The following are nil for an unmapper.
	pod    *v1.Pod
	spec   *volume.Spec
	source *source

	mu      sync.Mutex
	refresh time.Time
}

var (
	_ volume.BlockVolumeMapper   = (*blockVolume)(nil)
	_ volume.BlockVolumeUnmapper = (*blockVolume)(nil)
	_ volume.Refresher           = (*blockVolume)(nil)
)

// NewBlockVolumeMapper implements [volume.BlockVolumePlugin].
func (p *Plugin) NewBlockVolumeMapper(spec *volume.Spec, pod *v1.Pod) (volume.BlockVolumeMapper, error) {
	pv, err := volume.NewPodVolume(p.Host, PluginName, spec, pod)
	if err != nil {
		return nil, err
	}
	s, err := csivolume.Checked(&p.Kind, spec)
	if err == nil && !spec.IsBlock() {
		err = volume.Invalid("volumeMode", "must be Block for a device")
	}
	if err != nil {
		return nil, pv.Error("NewBlockVolumeMapper", err)
	}
	p.known.put(s, knownKey{name: spec.Name()})
	return &blockVolume{PodVolume: pv, plugin: p, pod: pod, spec: spec, source: s}, nil
}

// NewBlockVolumeUnmapper implements [volume.BlockVolumePlugin].
func (p *Plugin) NewBlockVolumeUnmapper(volumeName string, podUID types.UID) (volume.BlockVolumeUnmapper, error) {
	pv, err := volume.NewUnmountedPodVolume(p.Host, PluginName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &blockVolume{PodVolume: pv, plugin: p}, nil
}

// ConstructBlockVolumeSpec reads the volume's vol_data.json.
func (p *Plugin) ConstructBlockVolumeSpec(_ context.Context, _ types.UID, volumeName, _ string) (*volume.Spec, error) {
	if err := volume.CheckPathSegment("volume name", volumeName); err != nil {
		return nil, err
	}
	data, err := p.identify(p.disk.BlockData(volumeName), "", knownKey{name: volumeName})
	if err != nil {
		return nil, err
	}
	if data == nil {
		return nil, unidentified(p.disk.BlockData(volumeName))
	}
	return data.Spec(volumeName, v1.PersistentVolumeBlock), nil
}

// GetGlobalMapPath implements [volume.BlockVolume].
func (b *blockVolume) GetGlobalMapPath(*volume.Spec) (string, error) {
	return b.plugin.disk.BlockDir(b.Name, "dev"), nil
}

// GetPodDeviceMapPath implements [volume.BlockVolume].
func (b *blockVolume) GetPodDeviceMapPath() (dir, name string) {
	return layout.GetPodVolumeDeviceDir(b.Host, b.PodUID, PluginName), b.Name
}

// GetStagingPath implements [volume.BlockVolume].
func (b *blockVolume) GetStagingPath() string { return b.plugin.disk.BlockStaging(b.Name) }

func (b *blockVolume) publishPath() string { return b.plugin.disk.BlockPublish(b.Name, b.PodUID) }

func (b *blockVolume) key() knownKey { return knownKey{name: b.Name} }

func (b *blockVolume) request() *volumeRequest { return &volumeRequest{spec: b.spec, source: b.source} }

func (b *blockVolume) data() *volData {
	node := string(b.Host.GetNodeName())
	return &volData{SpecVolID: b.Name, VolumeHandle: b.source.Handle, DriverName: b.source.Driver, NodeName: node,
		AttachmentID: csivolume.AttachmentName(b.source, node), Lifecycle: csivolume.Lifecycle(false)}
}

// SetUpDevice stages the device by NodeStageVolume, if the driver stages.
func (b *blockVolume) SetUpDevice(ctx context.Context) (string, error) {
	place := b.GetStagingPath()
	if err := b.plugin.stage(ctx, b.request(), place, b.plugin.disk.BlockData(b.Name), b.data()); err != nil {
		return "", b.Error("SetUpDevice", err)
	}
	return place, nil
}

// RefreshAfter is the time of the next NodePublishVolume, if the CSIDriver requires it.
func (b *blockVolume) RefreshAfter() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refresh
}

// MapPodDevice publishes the device by NodePublishVolume. It calls the driver again for a
// device that is bound there already only if the CSIDriver requires that, or if an earlier
// attempt left doubt.
func (b *blockVolume) MapPodDevice(ctx context.Context) (string, error) {
	place := b.publishPath()
	if err := b.publish(ctx, place); err != nil {
		return "", b.Error("MapPodDevice", err)
	}
	return place, nil
}

func (b *blockVolume) publish(ctx context.Context, place string) error {
	p, w := b.plugin, b.request()
	mounted, err := p.disk.isMounted(place)
	if err != nil {
		return volume.NothingDone(err)
	}
	d, s, err := p.prepare(ctx, w)
	if err != nil {
		return err
	}
	if mounted && !w.driverSpec.republish && !p.known.isDoubtful(place) {
		if info, err := os.Stat(place); err == nil && info.Mode().Type() == fs.ModeDevice {
			return nil
		}
	}
	r := &csi.NodePublishVolumeRequest{VolumeId: b.source.Handle, TargetPath: place, StagingTargetPath: b.GetStagingPath(), Readonly: w.readOnly(),
		VolumeContext: podContext(b.source, w.driverSpec, b.pod)}
	if r.VolumeCapability, err = w.capability(s); err != nil {
		return err
	}
	secret, next, err := p.confide(ctx, w, b.pod, b.Name, r)
	if err != nil {
		return err
	}
	if _, err := writeData(p.disk.BlockData(b.Name), b.data()); err != nil {
		return volume.NothingDone(err)
	}
	if _, err := podmount.MakeDir(filepath.Dir(place), dirMode); err != nil {
		return volume.NothingDone(err)
	}
	there, err := p.disk.IsThere(place)
	if err != nil {
		return volume.NothingDone(err)
	}
	if r.PublishContext, err = stillAttached(ctx, p, d, w, nil, b.GetStagingPath(), false); err != nil {
		return p.settle(err, !there, place, func() error { return b.removePublished(place) })
	}
	doubted := p.known.doubt(place, true)
	err = p.drivers.Do(ctx, drivers.Call{Driver: d, Method: "NodePublishVolume", Volume: r.VolumeId, Secret: secret, Migrated: w.spec.Migrated}, func(ctx context.Context, s *drivers.Session) error {
		_, err := s.Node.NodePublishVolume(ctx, r)
		return err
	})
	if err == nil {
		b.mu.Lock()
		b.refresh = next
		b.mu.Unlock()
	}
	// The data is that of all pods, and stays.
	err = p.settle(err, !there && !doubted, place, func() error { return b.removePublished(place) })
	if !volume.IsUncertain(err) {
		p.known.doubt(place, err != nil && doubted)
	}
	return err
}

// removePublished removes the place of a pod, and the directory of all pods with the last.
func (b *blockVolume) removePublished(place string) error {
	if err := podmount.RemovePoint(place); err != nil {
		return err
	}
	_ = podmount.RemoveDir(filepath.Dir(place)) // which has other pods' places
	return nil
}

// UnmapPodDevice unpublishes the device by NodeUnpublishVolume.
func (b *blockVolume) UnmapPodDevice(ctx context.Context) error {
	return b.Error("UnmapPodDevice", b.unpublish(ctx, b.publishPath()))
}

func (b *blockVolume) unpublish(ctx context.Context, place string) error {
	p := b.plugin
	there, err := p.disk.IsThere(place)
	if err != nil || !there {
		return err
	}
	data, err := p.identify(p.disk.BlockData(b.Name), "", b.key())
	if err != nil {
		return err
	}
	if data == nil {
		return unidentified(p.disk.BlockData(b.Name))
	}
	if err := p.callUnpublish(ctx, data, place); err != nil {
		return err
	}
	if mounted, err := p.disk.isMounted(place); mounted || err != nil {
		return stillMounted(place, err)
	}
	p.known.doubt(place, false)
	p.known.tokens.put(issuedKey{b.PodUID, b.Name}, nil)
	p.meter.Forget(place)
	return b.removePublished(place)
}

// TearDownDevice unstages the device by NodeUnstageVolume, if the driver stages.
func (b *blockVolume) TearDownDevice(ctx context.Context, _, _ string) error {
	p, dir := b.plugin, b.plugin.disk.BlockData(b.Name)
	err := p.unstage(ctx, b.GetStagingPath(), dir, b.key())
	if err != nil {
		return b.Error("TearDownDevice", err)
	}
	p.known.forget(b.key())
	// The plugin's own directory stays: drivers' pods have it mounted, and would not see another.
	for _, empty := range []string{filepath.Dir(dir), p.disk.BlockDir("staging"), p.disk.BlockDir("publish"), p.disk.BlockDir()} {
		_ = podmount.RemoveDir(empty) // which other volumes may use
	}
	return nil
}
