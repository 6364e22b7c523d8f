package pluginbase

import (
	"sync/atomic"

	"github.com/podvol/podvol/volume"
)

// Hosted remembers for a plugin, which embeds it, the host of its last Init. Its zero
// value remembers none.
type Hosted struct {
	host atomic.Pointer[volume.VolumeHost]
}

// SetInitHost is called by Init.
func (h *Hosted) SetInitHost(with volume.VolumeHost) { h.host.Store(&with) }

// InitHost lets a [volume.VolumePluginMgr] find that another one has the plugin, too.
func (h *Hosted) InitHost() volume.VolumeHost {
	if host := h.host.Load(); host != nil {
		return *host
	}
	return nil
}
