package persistentvolume

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// here narrows what is wanted to what the only node can reach, if there is but
// one ([ControllerConfig.NodeName]).
func (c *Controller) here(ctx context.Context, w Wanted) (Wanted, error) {
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

// watchNode has all claims looked at when the only node has changed.
func (c *Controller) watchNode() (stop func()) {
	if c.nodeName == "" {
		return func() {}
	}
	return c.objects.Watch(volume.NewObjectRef(kindNode, "", c.nodeName), func(volume.ObjectRef) {
		for _, claim := range c.claims.all() {
			c.queue.add(claimRef(nameOf(claim)))
		}
	})
}
