package emptydir

import (
	"github.com/podvol/podvol/util/projectquota"
	"github.com/podvol/podvol/volume"
)

// NewWith is New on another kernel.
func NewWith(kernel projectquota.Kernel) volume.VolumePlugin { return newPlugin(kernel) }
