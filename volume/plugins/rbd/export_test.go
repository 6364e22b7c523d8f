package rbd

import "github.com/podvol/podvol/volume/internal/diskmount"

// Client and Formatter are what tests give the plugin.
type (
	Client    = client
	Formatter = diskmount.Formatter
	Plugin    = plugin
)

// NewWith returns the plugin with other hands.
func NewWith(c Config, hands Client, f Formatter) *Plugin { return newPlugin(c, hands, f) }
