package main

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
	"github.com/podvol/podvol/volume/ephemeralstorage"
)

// evict ends pods that take more of the node's disk than they may, until ctx ends. What
// containers write beside their volumes counts where the runtime can tell.
func evict(ctx context.Context, c config, lives *podlife.Pods, volumes *volumes) {
	containers, _ := lives.Runtime.(ephemeralstorage.Containers)
	monitor := ephemeralstorage.New(ephemeralstorage.Config{Volumes: volumes, Containers: containers})
	monitor.Run(ctx, c.measureEvery, lives.Evictable, func(pod *v1.Pod, e *ephemeralstorage.Eviction) {
		c.log.Warn("a pod takes more of the disk than it may, and is evicted", "pod", e.Pod, "reason", e.Message())
		lives.Evict(pod.UID, e.Message())
	})
}
