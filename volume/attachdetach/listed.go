package attachdetach

import (
	"context"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// listedTable has the volumes that nodes list as attached, other than CSI drivers': of an in-tree
// plugin's volume this may be all that says so. Kubernetes' controller makes no VolumeAttachments
// for them, and the API takes none of an inline volume.
type listedTable struct {
	mu      sync.Mutex
	nodes   map[types.NodeName][]v1.UniqueVolumeName
	volumes map[v1.UniqueVolumeName]map[types.NodeName]bool
}

func newListedTable() *listedTable {
	return &listedTable{nodes: make(map[types.NodeName][]v1.UniqueVolumeName), volumes: make(map[v1.UniqueVolumeName]map[types.NodeName]bool)}
}

// put notes what a node lists; nil: the node is gone.
func (t *listedTable) put(name types.NodeName, node *v1.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, listed := range t.nodes[name] {
		remove(t.volumes, listed, name)
	}
	delete(t.nodes, name)
	if node == nil {
		return
	}
	for i := range node.Status.VolumesAttached {
		if listed := node.Status.VolumesAttached[i].Name; !isDrivers(listed) {
			t.nodes[name] = append(t.nodes[name], listed)
			add(t.volumes, listed, name, true)
		}
	}
}

// on returns the nodes that list a volume, in order.
func (t *listedTable) on(name v1.UniqueVolumeName) (nodes []types.NodeName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for node := range t.volumes[name] {
		nodes = append(nodes, node)
	}
	slices.Sort(nodes)
	return nodes
}

// isDrivers reports whether a volume is of a CSI driver: its VolumeAttachment says whether it is
// attached, whatever a node lists.
func isDrivers(name v1.UniqueVolumeName) bool {
	return strings.HasPrefix(string(name), csiPrefix)
}

// takeInline adds an inline volume of a plugin, if that must be attached.
func (c *Controller) takeInline(ctx context.Context, now *podWishes, spec *volume.Spec) error {
	plugin, ok := c.attachablePlugin(spec)
	if !ok {
		return nil
	}
	name, err := uniqueName(plugin, spec)
	if err != nil {
		return nil // bad names are refused by the node, which tells the pod
	}
	attaches, err := plugin.CanAttach(ctx, spec)
	if err == nil && attaches {
		now.volumes[name] = &wanted{spec: spec, listed: true}
	}
	return err
}

// withoutObject returns what a node lists, or is to list, though no VolumeAttachment is of it:
// inline volumes that its pods want, and what was listed before, as long as a pod wants it there,
// or the node uses it.
func (c *Controller) withoutObject(node *v1.Node) (list []v1.AttachedVolume) {
	name := types.NodeName(node.Name)
	wants := c.wishes.volumesOn(name)
	unsure := c.wishes.isUnsureOn(name)
	for _, a := range node.Status.VolumesAttached {
		if !isDrivers(a.Name) && (unsure || slices.Contains(wants, a.Name) || isUsed(node, a.Name) && !c.isLost(node)) {
			list = append(list, a)
		}
	}
	for _, inline := range c.wishes.listedOn(name) {
		if !isListed(node, inline) {
			list = append(list, v1.AttachedVolume{Name: inline})
		}
	}
	return slices.DeleteFunc(list, func(a v1.AttachedVolume) bool { return c.attached.has(a.Name, name) })
}

// hasListed reports whether any of the pod's volumes is known by its node's list only.
func (p *podWishes) hasListed() bool {
	for _, w := range p.volumes {
		if w.listed {
			return true
		}
	}
	return false
}

// listedOn returns the inline volumes that pods of a node want listed.
func (w *wishes) listedOn(node types.NodeName) (names []v1.UniqueVolumeName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.nodes[node] {
		for name, want := range p.volumes {
			if want.listed {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// has reports whether a VolumeAttachment that a controller has made gives a volume to a node.
func (t *attachedTable) has(name v1.UniqueVolumeName, node types.NodeName) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range t.volumes[name] {
		if a.node() == node && !a.foreign {
			return true
		}
	}
	return false
}
