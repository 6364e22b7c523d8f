package iscsi

// Initiator and Formatter are what tests give the plugin.
type (
	Initiator = initiator
	Formatter = formatter
	Plugin    = plugin
)

// NewWith returns the plugin with other hands.
func NewWith(i Initiator, f Formatter) *Plugin { return newPlugin(i, f) }
