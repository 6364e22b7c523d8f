// Package plugins lists the volume plugins that need nothing special.
package plugins

import (
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/configmap"
	"github.com/podvol/podvol/volume/plugins/downwardapi"
	"github.com/podvol/podvol/volume/plugins/emptydir"
	"github.com/podvol/podvol/volume/plugins/hostpath"
	"github.com/podvol/podvol/volume/plugins/local"
	"github.com/podvol/podvol/volume/plugins/nfs"
	"github.com/podvol/podvol/volume/plugins/projected"
	"github.com/podvol/podvol/volume/plugins/secret"
)

// All returns a new instance of each plugin, in a slice that is the caller's:
// append plugins of your own, or leave some out. A plugin belongs to one
// [volume.VolumePluginMgr]; call All once for each.
func All() []volume.VolumePlugin {
	return []volume.VolumePlugin{
		configmap.New(),
		downwardapi.New(),
		emptydir.New(),
		hostpath.New(),
		local.New(),
		nfs.New(),
		projected.New(),
		secret.New(),
	}
}
