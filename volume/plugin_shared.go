package volume

import (
	"fmt"
	"reflect"
)

// hostedPlugin is implemented by plugins that return the host of their last Init,
// as podvol's own do. By it a [VolumePluginMgr] finds that another one has
// initialised the same plugin since. Such a plugin would put its volumes below
// the other's root directory. The method is safe for concurrent use. Absent:
// sharing is not found.
type hostedPlugin interface {
	VolumePlugin
	InitHost() VolumeHost
}

// owned refuses a plugin that another manager has initialised since m has. It
// does not refuse a restart in one process: the former manager looks nothing up
// any more.
func (m *VolumePluginMgr) owned(p VolumePlugin) (VolumePlugin, error) {
	hosted, ok := p.(hostedPlugin)
	if !ok {
		return p, nil
	}
	m.mu.RLock()
	host := m.hosts[p.GetPluginName()]
	m.mu.RUnlock()
	if sameHost(hosted.InitHost(), host) {
		return p, nil
	}
	return nil, NothingDone(&Failure{
		Cause: ErrSharedPlugin, Subject: p.GetPluginName(),
		What: fmt.Sprintf("volume plugin %q was initialised by another manager since, and would put volumes below the root directory of that one", p.GetPluginName()),
		Next: "give each manager plugins of its own, as each call of plugins.All returns them",
	})
}

// sameHost reports whether a and b are one host. Hosts that cannot be compared
// count as one.
func sameHost(a, b VolumeHost) bool {
	return a != nil && !reflect.TypeOf(a).Comparable() || a == b
}
