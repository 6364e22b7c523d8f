package kubeletapi

import (
	"context"
	"net/http"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// Volumes measure volumes; volumemanager.Manager does.
type Volumes interface {
	Metrics(ctx context.Context, pod types.UID, volume string) (*volume.Metrics, error)
}

// Usage is what a container uses.
type Usage struct {
	Time                         time.Time
	CPUNanoseconds               uint64 // in all
	WorkingSet, Memory, Resident uint64 // bytes
	Written, WrittenInodes       uint64 // of the container's own file system; 0: not known
}

// The part of the kubelet's summary (k8s.io/kubelet's stats/v1alpha1) that this node
// knows. Pointers to numbers that are not known are nil.

type summary struct {
	Node nodeStats  `json:"node"`
	Pods []podStats `json:"pods"`
}

type nodeStats struct {
	NodeName string `json:"nodeName"`
}

type podStats struct {
	PodRef     podReference     `json:"podRef"`
	StartTime  metav1.Time      `json:"startTime"`
	Containers []containerStats `json:"containers"`
	Volumes    []volumeStats    `json:"volume,omitempty"`
}

type podReference struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	UID       string `json:"uid"`
}

type containerStats struct {
	Name      string       `json:"name"`
	StartTime metav1.Time  `json:"startTime"`
	CPU       *cpuStats    `json:"cpu,omitempty"`
	Memory    *memoryStats `json:"memory,omitempty"`
	Rootfs    *rootfsStats `json:"rootfs,omitempty"`
}

type rootfsStats struct {
	Time       metav1.Time `json:"time"`
	UsedBytes  uint64      `json:"usedBytes"`
	InodesUsed uint64      `json:"inodesUsed,omitempty"`
}

type cpuStats struct {
	Time                 metav1.Time `json:"time"`
	UsageCoreNanoSeconds uint64      `json:"usageCoreNanoSeconds"`
}

type memoryStats struct {
	Time            metav1.Time `json:"time"`
	UsageBytes      uint64      `json:"usageBytes"`
	WorkingSetBytes uint64      `json:"workingSetBytes"`
	RSSBytes        uint64      `json:"rssBytes"`
}

type volumeStats struct {
	Name           string        `json:"name"`
	PVCRef         *pvcReference `json:"pvcRef,omitempty"`
	Time           metav1.Time   `json:"time"`
	AvailableBytes *uint64       `json:"availableBytes,omitempty"`
	CapacityBytes  *uint64       `json:"capacityBytes,omitempty"`
	UsedBytes      *uint64       `json:"usedBytes,omitempty"`
	InodesFree     *uint64       `json:"inodesFree,omitempty"`
	Inodes         *uint64       `json:"inodes,omitempty"`
	InodesUsed     *uint64       `json:"inodesUsed,omitempty"`
}

type pvcReference struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

// measuring is how long a summary waits for volumes whose servers do not answer.
const measuring = 5 * time.Second

// summary tells what pods use. A volume that cannot be measured is left out, as the
// kubelet does.
func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), measuring)
	defer cancel()
	used, err := s.Runtime.Usage(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	pods := s.Pods.List()
	all := summary{Node: nodeStats{s.Node}, Pods: make([]podStats, len(pods))}
	var measured sync.WaitGroup
	for i, pod := range pods {
		measured.Go(func() { all.Pods[i] = s.podStats(ctx, pod, used) })
	}
	measured.Wait()
	reply(w, all)
}

func (s *Server) podStats(ctx context.Context, pod *v1.Pod, used map[string]Usage) podStats {
	one := podStats{PodRef: podReference{pod.Name, pod.Namespace, string(pod.UID)}, Containers: []containerStats{}}
	if pod.Status.StartTime != nil {
		one.StartTime = *pod.Status.StartTime
	}
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for _, c := range list {
			u, known := used[c.ContainerID]
			if c.State.Running == nil || !known {
				continue
			}
			at := metav1.NewTime(u.Time)
			stats := containerStats{Name: c.Name, StartTime: c.State.Running.StartedAt, CPU: &cpuStats{at, u.CPUNanoseconds},
				Memory: &memoryStats{at, u.Memory, u.WorkingSet, u.Resident}}
			if u.Written > 0 {
				stats.Rootfs = &rootfsStats{at, u.Written, u.WrittenInodes}
			}
			one.Containers = append(one.Containers, stats)
		}
	}
	for _, v := range pod.Spec.Volumes {
		m, err := s.Volumes.Metrics(ctx, pod.UID, v.Name)
		if err != nil {
			continue
		}
		stats := volumeStats{Name: v.Name, Time: m.Time, AvailableBytes: number(m.Available), CapacityBytes: number(m.Capacity), UsedBytes: number(m.Used),
			InodesFree: number(m.InodesFree), Inodes: number(m.Inodes), InodesUsed: number(m.InodesUsed)}
		switch {
		case v.PersistentVolumeClaim != nil:
			stats.PVCRef = &pvcReference{v.PersistentVolumeClaim.ClaimName, pod.Namespace}
		case v.Ephemeral != nil:
			stats.PVCRef = &pvcReference{pod.Name + "-" + v.Name, pod.Namespace}
		}
		one.Volumes = append(one.Volumes, stats)
	}
	return one
}

func number(q *resource.Quantity) *uint64 {
	if q == nil {
		return nil
	}
	return new(uint64(max(0, q.Value())))
}
