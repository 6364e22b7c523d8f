package rbd

import "github.com/podvol/podvol/volume/internal/diskmount"

// Client and Formatter are what tests give the plugin.
type (
	Client    = client
	Formatter = diskmount.Formatter
	Plugin    = plugin
)

// NewWith returns the plugin with a client and a formatter of the test.
func NewWith(c Config, of Client, f Formatter) *Plugin { return newPlugin(c, of, f) }
