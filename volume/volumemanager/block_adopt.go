package volumemanager

import (
	"context"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// deviceLink is the pod's link to a block volume's device.
func deviceLink(host volume.VolumeHost, key rootdir.Key) string {
	return filepath.Join(volume.GetPodVolumeDeviceDir(host, key.PodUID, key.Plugin), key.Spec)
}

// hasDeviceLink reports whether what is without a record is a block volume.
func (m *Manager) hasDeviceLink(key rootdir.Key) bool {
	_, err := os.Readlink(deviceLink(m.host, key))
	return err == nil
}

// rebuildBlock makes a record from a pod's link to a device. Which device that
// is, is known by today's name only, so the source counts as guessed.
func (m *Manager) rebuildBlock(ctx context.Context, key rootdir.Key, plugin volume.VolumePlugin) (*mountrecord.Record, error) {
	link := deviceLink(m.host, key)
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
		Source: volume.DescribeSource(plugin, spec), PersistentVolume: spec.PersistentVolume, ReadOnly: spec.ReadOnly,
		Rebuilt: true, Guessed: true,
	}, nil
}

// foundDevice is what is mapped of a rebuilt block volume; nil for file systems.
func (m *Manager) foundDevice(record *mountrecord.Record) (*mountrecord.MappedDevice, error) {
	spec := record.Spec()
	if !spec.IsBlock() {
		return nil, nil
	}
	plugin, err := m.plugins.FindPluginByName(record.Plugin)
	if err != nil {
		return nil, err
	}
	use, err := deviceOf(plugin, spec, record.PodUID)
	if err != nil {
		return nil, err
	}
	node, err := os.Readlink(record.Path)
	if err != nil {
		return nil, err
	}
	return &mountrecord.MappedDevice{Node: node, Bind: use.bindOf(record.PodUID)}, nil
}

// bindOf is where the device of a block volume is bound for a pod.
func (use *deviceUse) bindOf(podUID types.UID) string {
	return filepath.Join(use.device.path, string(podUID))
}
