package iscsi

import "github.com/podvol/podvol/volume/internal/diskmount"

// Initiator and Formatter are what tests give the plugin.
type (
	Initiator = initiator
	Formatter = diskmount.Formatter
	Plugin    = plugin
)

// NewWith returns the plugin with an initiator and a formatter of the test.
func NewWith(i Initiator, f Formatter) *Plugin { return newPlugin(i, f, "") }

// ShareMachine has the plugin lock targets for all programs of a machine.
func (p *plugin) ShareMachine(lockDir string) { p.lockDir = lockDir }
