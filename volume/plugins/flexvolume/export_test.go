package flexvolume

import (
	"github.com/podvol/podvol/volume/internal/diskmount"
	"github.com/podvol/podvol/volume/plugins/flexvolume/internal/driver"
)

// Plugin is what New returns.
type Plugin = plugin

// NewWith is New with another runner of drivers, and of what formats.
func NewWith(config Config, run driver.Runner, formats diskmount.Formatter) *Plugin {
	return newPlugin(config, run, formats)
}
