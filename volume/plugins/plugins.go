// Package plugins lists the volume plugins that need nothing special.
package plugins

import (
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/emptydir"
	"github.com/podvol/podvol/volume/plugins/hostpath"
	"github.com/podvol/podvol/volume/plugins/local"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// All returns a new instance of each plugin, in a slice that is the caller's:
// append plugins of your own, or leave some out. A plugin belongs to one
// [volume.VolumePluginMgr]; call All once for each.
func All() []volume.VolumePlugin {
	return []volume.VolumePlugin{
		emptydir.New(),
		hostpath.New(),
		local.New(),
		nfs.New(),
	}
}
