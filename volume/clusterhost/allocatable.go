package clusterhost

import (
	"context"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// Allocatable is a [volume.AllocatableGetter] that answers with the
// status.allocatable of this node's Node object. It is safe for concurrent use.
type Allocatable struct {
	source objects.Source
	ref    volume.ObjectRef
	watch  sync.Once
}

var _ volume.AllocatableGetter = (*Allocatable)(nil)

// NewAllocatable returns a getter that asks nothing yet. From the first question
// on the source watches the node, until the source is closed, so that all others
// are answered from memory.
func NewAllocatable(source objects.Source, nodeName string) *Allocatable {
	return &Allocatable{source: source, ref: volume.NewObjectRef("Node", "", nodeName)}
}

// GetAllocatable implements [volume.AllocatableGetter]. The errors are as in
// [objects.Source]; a node without allocatable resources is one too. The caller
// must not change the result.
func (a *Allocatable) GetAllocatable(ctx context.Context) (v1.ResourceList, error) {
	a.watch.Do(func() { a.source.Watch(a.ref, func(volume.ObjectRef) {}) })
	node, err := objects.Get[*v1.Node](ctx, a.source, a.ref)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the allocatable resources: %w", err)
	case len(node.Status.Allocatable) == 0:
		return nil, fmt.Errorf("read the allocatable resources: the status of %s does not have them yet", a.ref)
	}
	return node.Status.Allocatable, nil
}
