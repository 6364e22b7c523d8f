package volumemanager

import (
	"fmt"
	"time"

	"github.com/podvol/podvol/volume"
)

// rows are the status of a directory's volumes, with what is known of their server.
// The caller holds the lock.
func (m *Manager) rows(s *podVolume) []VolumeStatus {
	rows := s.rows()
	health := m.healthOf(s)
	for i := range rows {
		rows[i].Server = health
	}
	return rows
}

// healthOf is what the plugin knows of the volume's server; zero: it keeps no
// book, or it is not known yet which plugin and server it is.
func (m *Manager) healthOf(s *podVolume) volume.SourceHealth {
	r := s.describe()
	if r.Plugin == "" || r.InlineVolume == nil && r.PersistentVolume == nil {
		return volume.SourceHealth{}
	}
	plugin, err := m.plugins.FindPluginByName(r.Plugin)
	if err != nil {
		return volume.SourceHealth{}
	}
	health, _ := volume.HealthOf(plugin, r.Spec())
	return health
}

// ServerTrouble says in a few words what is amiss with the volume's server;
// empty where nothing is known to be.
func (s VolumeStatus) ServerTrouble() string {
	h := s.Server
	if h.Source == "" || h.Answers {
		return ""
	}
	text := fmt.Sprintf("%s has not answered since %s", h.Source, h.Since.UTC().Format(time.RFC3339))
	if wait := time.Until(h.RetryAt); wait > 0 {
		return text + fmt.Sprintf("; it is tried again in %s", wait.Round(time.Millisecond))
	}
	return text + "; it is tried again by the next mount from it"
}
