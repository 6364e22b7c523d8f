package nfs

import (
	"cmp"
	"time"

	"github.com/podvol/podvol/mount"
)

// Config is how the plugin behaves on a node. Its zero value is what most nodes
// need: everything that a node's administrator has to opt into is off. It is
// read by [New] only, and checked when the plugin is initialised.
type Config struct {
	// Inline is what pods may ask of servers by annotations.
	Inline InlinePolicy
	// ForceAfter is how long a normal unmount may take before a forced one is
	// tried, which loses what was not yet written to a server that does not
	// answer; it is left out while the server answers or another pod has the same
	// file system mounted, see [mount.UnmountOptions]. LazyAfter is how long after its beginning the mount is detached at
	// last, so that its pod can end. 0 means one minute, which is what the
	// kubelet waits before it forces, and two; less than 0 means never.
	ForceAfter, LazyAfter time.Duration
	// Breaker is how the plugin treats servers that do not answer.
	Breaker BreakerConfig
	// Recycle is how volumes are emptied for their next claim.
	Recycle RecycleConfig
	// Provision has what storage classes leave open.
	Provision ProvisionConfig
}

const (
	defaultForceAfter = time.Minute
	defaultLazyAfter  = 2 * time.Minute
)

// ladder is how volumes are unmounted.
func (p *plugin) ladder() mount.UnmountOptions {
	return mount.UnmountOptions{
		ForceAfter: max(0, cmp.Or(p.config.ForceAfter, defaultForceAfter)),
		LazyAfter:  max(0, cmp.Or(p.config.LazyAfter, defaultLazyAfter)),
	}
}
