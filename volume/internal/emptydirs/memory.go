package emptydirs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// noLimit is the size that leaves it to the kernel.
const noLimit int64 = 0

// MemorySize is the size of a pod's tmpfs, as the kubelet's since Kubernetes 1.22
// (SizeMemoryBackedVolumes): the least of the given limits, the pod's memory
// limit and the node's memory for pods. 0: none of them is known. Limits of 0 are
// none, a host without [volume.AllocatableGetter] does not tell its memory, and a
// pod with an unlimited container has no limit. The error is that getter's; where
// another limit is known, that stands alone while the getter fails.
func MemorySize(ctx context.Context, host volume.VolumeHost, pod *v1.Pod, limits ...int64) (int64, error) {
	own := Least(append(limits, podMemoryLimit(pod))...)
	allocatable, err := allocatableMemory(ctx, host)
	if err != nil && own == noLimit {
		return noLimit, err
	}
	return Least(own, allocatable), nil
}

func allocatableMemory(ctx context.Context, host volume.VolumeHost) (int64, error) {
	node, err := volume.Role[volume.AllocatableGetter](host)
	if _, missing := errors.AsType[*volume.MissingRoleError](err); missing {
		return noLimit, nil
	}
	if err != nil {
		return noLimit, err
	}
	allocatable, err := node.GetAllocatable(ctx)
	if err != nil {
		return noLimit, fmt.Errorf("what the node has for pods cannot be told, and nothing else limits the volume in memory: %w", err)
	}
	return max(allocatable.Memory().Value(), noLimit), nil
}

// podMemoryLimit is the most memory that the pod may use, if everything in it is
// limited: its own limit, or the larger of two sums. One is of its containers.
// The other is of an init container and those that started before it and stay.
func podMemoryLimit(pod *v1.Pod) int64 {
	if pod.Spec.Resources != nil {
		if limit, ok := pod.Spec.Resources.Limits[v1.ResourceMemory]; ok {
			return max(limit.Value(), noLimit)
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
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

// Least returns the smallest limit of those that are set, which are not 0.
func Least(limits ...int64) int64 {
	result := noLimit
	for _, l := range limits {
		if l != noLimit && (result == noLimit || l < result) {
			result = l
		}
	}
	return result
}
