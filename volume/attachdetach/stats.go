package attachdetach

import (
	"maps"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
)

// Stats are what a [Controller]'s metrics show: attachdetach_controller_total_volumes and
// attach_detach_controller_attachdetach_controller_forced_detaches of Kubernetes' controller
// (pkg/controller/volume/attachdetach/metrics of v1.37). Keys of Wanted and Attached are
// plugins; for CSI drivers "kubernetes.io/csi:" and the driver. "unknown" has the attachments of
// which only whoever has made them knows the volume.
type Stats struct {
	// Wanted is how many volumes pods want at their nodes: each counts once for each node.
	Wanted map[string]int
	// Attached is how many VolumeAttachments there are, whatever their state.
	Attached map[string]int
	// Forced is how many volumes were detached from nodes that use them and are not waited
	// for, by the reason: [ForcedByTaint] or [ForcedByTime]. It starts with the controller.
	Forced map[string]int
}

// The reasons of Stats.Forced.
const (
	ForcedByTaint = "out-of-service"
	ForcedByTime  = "timeout"
)

// Stats returns how much there is to do and is done. The caller owns it. It does no I/O, and
// may be called concurrently.
func (c *Controller) Stats() Stats {
	return Stats{Wanted: c.wishes.count(), Attached: c.attached.count(), Forced: c.forced.get()}
}

// pluginOf returns the plugin of a volume's unique name, as metrics name it.
func pluginOf(name v1.UniqueVolumeName) string {
	group, rest, _ := strings.Cut(string(name), "/")
	plugin, of, named := strings.Cut(rest, "/")
	switch {
	case !named: // nobody knows of which volume a VolumeAttachment is
		return group
	case plugin == "csi":
		driver, _, _ := strings.Cut(of, "^")
		return group + "/csi:" + driver
	}
	return group + "/" + plugin
}

func (w *wishes) count() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := make(map[string]int)
	for name, pods := range w.volumes {
		nodes := make(map[string]bool)
		for _, p := range pods {
			if p.volumes[name].attaches {
				nodes[string(p.node)] = true
			}
		}
		if len(nodes) > 0 {
			n[pluginOf(name)] += len(nodes)
		}
	}
	return n
}

func (t *attachedTable) count() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := make(map[string]int)
	for name, all := range t.volumes {
		n[pluginOf(name)] += len(all)
	}
	return n
}

// counts count things by name. The zero value is ready.
type counts struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counts) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[string]int)
	}
	c.n[name]++
}

func (c *counts) get() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n)
}
