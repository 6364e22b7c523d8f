package emptydir

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// noLimit is the zero size; a sizeLimit of 0 means the same, as in the kubelet.
const noLimit int64 = 0

func sizeLimit(source *v1.EmptyDirVolumeSource) int64 {
	if source.SizeLimit == nil {
		return noLimit
	}
	return source.SizeLimit.Value()
}

// podMemoryLimit is the most memory that the pod may use, if everything in it
// is limited: its own limit, or the larger of what its containers may use
// together and what one of its init containers may use beside those that
// started before it and stay.
func podMemoryLimit(pod *v1.Pod) int64 {
	if pod.Spec.Resources != nil {
		if limit, ok := pod.Spec.Resources.Limits[v1.ResourceMemory]; ok {
			return max(limit.Value(), noLimit)
		}
	}
	for _, c := range containers(pod) {
		if c.Resources.Limits.Memory().Sign() <= 0 {
			return noLimit
		}
	}
	var peak, staying int64
	for _, c := range pod.Spec.InitContainers {
		limit := c.Resources.Limits.Memory().Value()
		peak = max(peak, staying+limit)
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			staying += limit
		}
	}
	for _, c := range pod.Spec.Containers {
		staying += c.Resources.Limits.Memory().Value()
	}
	return max(peak, staying)
}

// memorySize is the size of a tmpfs: the least of the volume's limit, the
// pod's memory limit and what the caller desires; without any of them what the
// node has for pods, if it says; else the kernel decides.
func (m *mounter) memorySize(ctx context.Context, args volume.MounterArgs) (int64, error) {
	size := least(m.limit, m.podLimit, desired(args))
	if size != noLimit {
		return size, nil
	}
	node, err := volume.Role[volume.AllocatableGetter](m.Host)
	if _, missing := errors.AsType[*volume.MissingRoleError](err); missing {
		return noLimit, nil
	}
	if err != nil {
		return noLimit, err
	}
	allocatable, err := node.GetAllocatable(ctx)
	if err != nil {
		return noLimit, fmt.Errorf("what the node has for pods cannot be told, and the volume has no sizeLimit: %w", err)
	}
	return max(allocatable.Memory().Value(), noLimit), nil
}

func desired(args volume.MounterArgs) int64 {
	if args.DesiredSize == nil {
		return noLimit
	}
	return max(args.DesiredSize.Value(), noLimit)
}

// least returns the smallest limit of those that are set.
func least(limits ...int64) int64 {
	result := noLimit
	for _, l := range limits {
		if l != noLimit && (result == noLimit || l < result) {
			result = l
		}
	}
	return result
}
