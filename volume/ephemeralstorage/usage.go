// Package ephemeralstorage says which pods take more of the node's disk than they may, so that
// an agent can evict them as the kubelet does.
//
// # What counts
//
// The volumes that are on the node's disk and end with the pod: emptyDir (not in memory or huge
// pages), configMap and gitRepo. Secret, downwardAPI and projected volumes count if their
// plugins have them on disk ([Config.FilesOnDisk]). What containers write beside their volumes,
// and their logs, count if [Config.Containers] tells of them.
//
// # What is allowed
//
// As in the kubelet, in this order, with its words:
//
//   - The sizeLimit of each emptyDir on disk.
//   - The pod's limit of ephemeral-storage: the sum of its containers' ([Limit]).
//   - The limit of each container, for what it writes beside its volumes, and its logs.
//
// # Certainty
//
// Whatever could not be measured counts as nothing, and so does a measurement of an earlier time.
// A walk that ran out of its budget counts as far as it came. So a pod is named only if it
// certainly exceeds a limit, and [Usage.Unknown] says what was left out.
//
// Nothing tells when a file grows. So who wants to know has to ask again and again, as often as
// it likes: [Monitor.Check] asks once, [Monitor.Run] at an interval.
package ephemeralstorage

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/meter"
)

// Volumes measure a pod's volumes. A volumemanager.Manager does.
type Volumes interface {
	Metrics(ctx context.Context, pod types.UID, volume string) (*volume.Metrics, error)
}

// Containers tell what a pod's containers take of the node's disk.
type Containers interface {
	// DiskUsage returns bytes by the containers' names: what they have written beside their
	// volumes, and their logs. It may return what is known beside an error.
	DiskUsage(ctx context.Context, pod *v1.Pod) (map[string]int64, error)
}

// Usage is what a pod takes of the node's disk, in bytes.
type Usage struct {
	Volumes, Containers map[string]int64
	// Unknown says what could not be measured; nil: everything was.
	Unknown error
}

// Total is the sum.
func (u Usage) Total() (bytes int64) {
	for _, part := range []map[string]int64{u.Volumes, u.Containers} {
		for _, n := range part {
			bytes += n
		}
	}
	return bytes
}

// isLocal reports whether a volume counts. FilesOnDisk is as in [Config].
func isLocal(v *v1.Volume, filesOnDisk bool) bool {
	switch {
	case v.EmptyDir != nil:
		return v.EmptyDir.Medium == v1.StorageMediumDefault
	case v.ConfigMap != nil, v.GitRepo != nil:
		return true
	case v.Secret != nil, v.DownwardAPI != nil, v.Projected != nil:
		return filesOnDisk
	}
	return false
}

// measured is the use that metrics prove.
func measured(metrics *volume.Metrics, err error) (bytes int64, unknown error) {
	if metrics == nil || metrics.Used == nil {
		return 0, err
	}
	if failure, ok := errors.AsType[*meter.Error](err); err != nil && (!ok || !failure.AtLeast) {
		return 0, err // of an earlier time
	}
	return metrics.Used.Value(), err
}

// Limit returns the most that a pod may take of the node's disk in all; false: it has no limit.
// It is the larger of two sums of the limits of ephemeral-storage, and the pod's
// overhead is added to it. One sum is of the containers and the sidecars. The other is of an
// init container and the sidecars before it. As in Kubernetes, containers
// without a limit add nothing, and the pod's own resources (spec.resources) have no such limit.
func Limit(pod *v1.Pod) (limit resource.Quantity, limited bool) {
	const kind = v1.ResourceEphemeralStorage
	var sidecars, peak resource.Quantity
	for _, c := range pod.Spec.InitContainers {
		own, has := c.Resources.Limits[kind]
		limited = limited || has
		own = own.DeepCopy()
		own.Add(sidecars)
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			sidecars = own
		} else if own.Cmp(peak) > 0 {
			peak = own
		}
	}
	limit = sidecars.DeepCopy()
	for _, c := range pod.Spec.Containers {
		own, has := c.Resources.Limits[kind]
		limited = limited || has
		limit.Add(own)
	}
	if peak.Cmp(limit) > 0 {
		limit = peak
	}
	limit.Add(pod.Spec.Overhead[kind])
	return limit, limited
}

// Eviction says which limits a pod exceeds, for which the kubelet evicts it.
type Eviction struct {
	Pod    types.NamespacedName
	UID    types.UID
	Usage  Usage
	Limits []Excess // not empty
}

// Message is the kubelet's for the first limit. The pod's status has it.
func (e *Eviction) Message() string { return e.Limits[0].String() }

// Excess is one limit that is exceeded.
type Excess struct {
	// Volume or Container is what it is a limit of; the pod, if both are empty.
	Volume, Container string
	Used              int64 // bytes
	Limit             resource.Quantity
}

// String is what the kubelet says.
func (e Excess) String() string {
	switch {
	case e.Volume != "":
		return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q.", e.Volume, e.Limit.String())
	case e.Container != "":
		return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q.", e.Container, e.Limit.String())
	}
	return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s.", e.Limit.String())
}

// Exceeded compares what a pod takes with what it may; nil: it exceeds nothing.
func Exceeded(pod *v1.Pod, usage Usage) *Eviction {
	var all []Excess
	add := func(e Excess) {
		if e.Limit.CmpInt64(e.Used) < 0 {
			all = append(all, e)
		}
	}
	for _, v := range pod.Spec.Volumes {
		if s := v.EmptyDir; s != nil && s.Medium == v1.StorageMediumDefault && s.SizeLimit != nil && s.SizeLimit.Sign() > 0 {
			add(Excess{Volume: v.Name, Used: usage.Volumes[v.Name], Limit: *s.SizeLimit})
		}
	}
	if limit, limited := Limit(pod); limited {
		add(Excess{Used: usage.Total(), Limit: limit})
	}
	for _, c := range pod.Spec.Containers {
		if limit := c.Resources.Limits.StorageEphemeral(); limit.Sign() > 0 {
			add(Excess{Container: c.Name, Used: usage.Containers[c.Name], Limit: *limit})
		}
	}
	if all == nil {
		return nil
	}
	return &Eviction{Pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, UID: pod.UID, Usage: usage, Limits: slices.Clip(all)}
}

// isLimited reports whether anything of a pod has to be measured.
func isLimited(pod *v1.Pod) bool {
	if _, limited := Limit(pod); limited {
		return true
	}
	return slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool {
		return v.EmptyDir != nil && v.EmptyDir.Medium == v1.StorageMediumDefault && v.EmptyDir.SizeLimit != nil && v.EmptyDir.SizeLimit.Sign() > 0
	})
}
