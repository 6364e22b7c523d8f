package volumemanager

import (
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// tellShortfalls tells a pod, when its volume is set up for the first time, what
// it asks for and does not get.
func (m *Manager) tellShortfalls(u *setUp) {
	if m.config.Events == nil {
		return
	}
	plugin, err := m.plugins.FindPluginByName(u.record.Plugin)
	if err != nil {
		return // it has just set the volume up
	}
	for _, s := range volume.Shortfalls(plugin, u.record.Spec(), u.pod) {
		m.config.Events.Event(u.pod, v1.EventTypeNormal, s.Reason, s.Message)
	}
}
