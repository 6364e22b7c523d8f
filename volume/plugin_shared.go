package volume

import (
	"fmt"
	"reflect"
)

// HostedPlugin is implemented by plugins that tell which host their last Init was
// called with, as podvol's own do. A [VolumePluginMgr] finds by it that another one
// has initialised the same plugin since: the plugin would put its volumes below the
// other's root directory. It is safe for concurrent use. Absent: sharing is not found.
type HostedPlugin interface {
	VolumePlugin
	InitHost() VolumeHost
}

// SharedPluginError says that a plugin belongs to another [VolumePluginMgr] by now.
type SharedPluginError struct {
	// Plugin is the plugin's name.
	Plugin string
}

func (e *SharedPluginError) Error() string {
	return fmt.Sprintf("volume plugin %q was initialised by another manager since, and would put volumes below the root directory of that one: give each manager plugins of its own, as each call of plugins.All returns them", e.Plugin)
}

// owned refuses a plugin that another manager has initialised since m has. A restart in
// one process is not refused: the manager of before looks up nothing any more.
func (m *VolumePluginMgr) owned(p VolumePlugin) (VolumePlugin, error) {
	hosted, ok := p.(HostedPlugin)
	if !ok {
		return p, nil
	}
	m.mu.RLock()
	host := m.hosts[p.GetPluginName()]
	m.mu.RUnlock()
	if sameHost(hosted.InitHost(), host) {
		return p, nil
	}
	return nil, NothingDone(&SharedPluginError{Plugin: p.GetPluginName()})
}

// sameHost takes hosts that cannot be compared for one.
func sameHost(a, b VolumeHost) bool {
	return a != nil && !reflect.TypeOf(a).Comparable() || a == b
}
