package main

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

// machine tells what pods may use in all: what the Node object says, if the
// manifests have one, else what this machine has.
type machine struct {
	objects objects.Source
	node    types.NodeName
}

var _ volume.AllocatableGetter = machine{}

func (m machine) GetAllocatable(ctx context.Context) (v1.ResourceList, error) {
	object, err := m.objects.Get(ctx, volume.NewObjectRef("Node", "", string(m.node)))
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
