package standalone

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// Machine has the resources that pods may use in all: the Node object's, if the
// manifests have one, else this machine's.
type Machine struct {
	// Objects may have the Node object.
	Objects objects.Source
	// NodeName is its name.
	NodeName types.NodeName
}

var _ volume.AllocatableGetter = Machine{}

// GetAllocatable implements volume.AllocatableGetter.
func (m Machine) GetAllocatable(ctx context.Context) (v1.ResourceList, error) {
	object, err := m.Objects.Get(ctx, volume.NewObjectRef("Node", "", string(m.NodeName)))
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		return nil, err
	}
	if node, ok := object.(*v1.Node); ok && len(node.Status.Allocatable) > 0 {
		return node.Status.Allocatable, nil
	}
	return thisMachine()
}

func thisMachine() (v1.ResourceList, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return nil, fmt.Errorf("asking for this machine's memory: %w", err)
	}
	memory := int64(info.Totalram) * int64(info.Unit)
	return v1.ResourceList{
		v1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
	}, nil
}
