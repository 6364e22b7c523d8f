// Package plugins lists the volume plugins that need no further module. The others are below it, too:
// csi, which needs gRPC, and image, which needs a module for decompression.
package plugins

import (
	"slices"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/cephfs"
	"github.com/podvol/podvol/volume/plugins/configmap"
	"github.com/podvol/podvol/volume/plugins/downwardapi"
	"github.com/podvol/podvol/volume/plugins/emptydir"
	"github.com/podvol/podvol/volume/plugins/flexvolume"
	"github.com/podvol/podvol/volume/plugins/glusterfs"
	"github.com/podvol/podvol/volume/plugins/hostpath"
	"github.com/podvol/podvol/volume/plugins/iscsi"
	"github.com/podvol/podvol/volume/plugins/local"
	"github.com/podvol/podvol/volume/plugins/nfs"
	"github.com/podvol/podvol/volume/plugins/projected"
	"github.com/podvol/podvol/volume/plugins/rbd"
	"github.com/podvol/podvol/volume/plugins/secret"
)

// All returns a new instance of each plugin, in a slice that is the caller's:
// append plugins of your own, or leave some out. A plugin belongs to one
// [volume.VolumePluginMgr]; call All once for each.
//
// Replacements take the place of the stock plugin of the same name, such as an
// nfs.New(config); those with names of their own are appended. What the manager
// says of two of one name holds for replacements too.
func All(replacements ...volume.VolumePlugin) []volume.VolumePlugin {
	all := []volume.VolumePlugin{
		cephfs.New(cephfs.Config{}),
		configmap.New(),
		downwardapi.New(downwardapi.Config{}),
		emptydir.New(),
		flexvolume.New(flexvolume.Config{}),
		glusterfs.New(glusterfs.Config{}),
		hostpath.New(hostpath.Config{}),
		iscsi.New(iscsi.Config{}),
		local.New(local.Config{}),
		nfs.New(nfs.Config{}),
		projected.New(projected.Config{}),
		rbd.New(rbd.Config{}),
		secret.New(secret.Config{}),
	}
	replaced := make(map[string]bool)
	for _, r := range replacements {
		name := r.GetPluginName()
		i := slices.IndexFunc(all, func(p volume.VolumePlugin) bool { return p.GetPluginName() == name })
		if i < 0 || replaced[name] {
			all = append(all, r)
			continue
		}
		all[i], replaced[name] = r, true
	}
	return all
}
