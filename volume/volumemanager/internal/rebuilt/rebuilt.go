// Package rebuilt makes records of volumes that have none, from what is on disk: the
// directory, or a block volume's link to its device, and the mount table. It changes nothing.
package rebuilt

import (
	"context"
	"os"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
	"github.com/podvol/podvol/volume/volumesource"
)

// Maker makes the records of one root directory.
type Maker struct {
	Host    *volume.Host
	Plugins *volume.VolumePluginMgr
}

// Record makes the record of the volume at a directory, without a confirmation.
func (m Maker) Record(ctx context.Context, key rootdir.Key) (*mountrecord.Record, error) {
	plugin, err := m.Plugins.FindPluginByName(key.Plugin)
	if err != nil {
		return nil, err
	}
	if rootdir.HasDeviceLink(m.Host, key) {
		return m.ofBlock(ctx, key, plugin)
	}
	unmounter, err := plugin.NewUnmounter(key.Spec, key.PodUID) // whose path may be within the volume's directory
	if err != nil {
		return nil, err
	}
	path := unmounter.GetPath()
	found, err := plugin.ConstructVolumeSpec(ctx, key.Spec, path)
	if err != nil {
		return nil, err
	}
	r := recordOf(key, plugin, found.Spec, path)
	r.SELinuxLabel, r.Guessed = found.SELinuxMountContext, !found.Complete
	return r, nil
}

func recordOf(key rootdir.Key, plugin volume.VolumePlugin, spec *volume.Spec, path string) *mountrecord.Record {
	return &mountrecord.Record{
		PodUID: key.PodUID, Volumes: []string{key.Spec}, Plugin: key.Plugin, Path: path, Source: volumesource.Describe(plugin, spec),
		InlineVolume: spec.Volume, PersistentVolume: spec.PersistentVolume, ReadOnly: spec.ReadOnly, Rebuilt: true,
	}
}

// ofBlock makes a record from a pod's link to a device. Which device that is, is known by
// today's name only, so the source counts as guessed.
func (m Maker) ofBlock(ctx context.Context, key rootdir.Key, plugin volume.VolumePlugin) (*mountrecord.Record, error) {
	link := rootdir.DeviceLink(m.Host, key)
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
	r := recordOf(key, plugin, spec, link)
	r.Guessed = true
	return r, nil
}

// Device is the mapped device of a block volume whose record was made; nil for file systems.
func (m Maker) Device(record *mountrecord.Record) (*mountrecord.MappedDevice, error) {
	spec := record.Spec()
	if !spec.IsBlock() {
		return nil, nil
	}
	plugin, err := m.Plugins.FindPluginByName(record.Plugin)
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
