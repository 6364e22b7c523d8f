package persistentvolume

import (
	"context"
	"errors"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// here narrows a search to volumes that the only node can reach, if there is but
// one ([ControllerConfig.NodeName]).
func (c *cluster) here(ctx context.Context, w index.Wanted) (index.Wanted, error) {
	if c.nodeName == "" {
		return w, nil
	}
	w.NodeName = c.nodeName
	node, err := objects.Get[*v1.Node](ctx, c.objects, volume.NewObjectRef(kindNode, "", c.nodeName))
	switch {
	case err == nil:
		w.NodeLabels = node.Labels
	case !errors.Is(err, volume.ErrNotFound):
		return w, err
	}
	return w, nil
}

// watchNode has the only node looked at when it has changed.
func (c *Controller) watchNode() (stop func()) {
	if c.nodeName == "" {
		return func() {}
	}
	return c.objects.Watch(volume.NewObjectRef(kindNode, "", c.nodeName), c.queue.Add)
}

// syncNode has the claims looked at that have no volume when the only node has
// come or gone, or has other labels. A node changes every few seconds otherwise,
// to say that it lives.
func (c *Controller) syncNode(ctx context.Context) error {
	node, err := objects.Get[*v1.Node](ctx, c.objects, volume.NewObjectRef(kindNode, "", c.nodeName))
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		return err
	}
	now := &onlyNode{exists: err == nil}
	if now.exists {
		now.uid, now.labels = node.UID, node.Labels
	}
	if now.equal(c.node) {
		return nil
	}
	c.node = now
	for _, claim := range c.claims.all() {
		if _, bound := claim.Annotations[pvapi.AnnBindCompleted]; !bound || isProvisioning(claim) {
			c.queue.Add(pvapi.ClaimRef(pvapi.NameOf(claim)))
		}
	}
	return nil
}

// onlyNode is what it depends on of the only node which volumes it can reach.
type onlyNode struct {
	exists bool
	uid    types.UID
	labels map[string]string
}

func (n *onlyNode) equal(other *onlyNode) bool {
	return other != nil && n.exists == other.exists && n.uid == other.uid && maps.Equal(n.labels, other.labels)
}

// selectedNode returns the node that was chosen for the claim's first pod, nil
// where none was.
func (c *cluster) selectedNode(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.Node, error) {
	return c.nodeNamed(ctx, claim.Annotations[annSelectedNode])
}

func (c *cluster) nodeNamed(ctx context.Context, name string) (*v1.Node, error) {
	if name == "" {
		return nil, nil
	}
	node, err := objects.Get[*v1.Node](ctx, c.objects, volume.NewObjectRef(kindNode, "", name))
	if errors.Is(err, volume.ErrNotFound) {
		return objects.Get[*v1.Node](ctx, objects.Live(c.objects), volume.NewObjectRef(kindNode, "", name))
	}
	return node, err
}
