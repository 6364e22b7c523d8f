package volumemanager

import "github.com/podvol/podvol/volume/volumemanager/internal/rootdir"

// Damaged returns a *[DamagedError] while records of the root directory are
// known to be lost: what Explain returns need not be all then. Before the manager
// has recovered it says what was found until then. It reads a directory, and
// returns any error of that too, which counts as damage.
func (m *Manager) Damaged() error {
	return rootdir.Damaged(m.host.RootDir)
}

// hidden says why there may be volumes of a plugin that no record tells of.
func (m *Manager) hidden(plugin string) error {
	if err := m.Damaged(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.pods {
		for _, s := range p.volumes {
			if s.actual.unreadable != nil && s.actual.key.Plugin == plugin {
				return s.actual.unreadable
			}
		}
	}
	return nil
}
