package ephemeralstorage_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/ephemeralstorage"
)

// An agent gives its volume manager, and says which pods are there and how a pod is evicted.
func ExampleMonitor_Run() {
	manager := &node{volumes: map[string]int64{"scratch": 3 << 20}} // a *volumemanager.Manager
	pod := newPod(limited(""))
	pod.Spec.Volumes = []v1.Volume{emptyDir("scratch", "", "1Mi")}

	ctx, stop := context.WithCancel(context.Background())
	ephemeralstorage.New(ephemeralstorage.Config{Volumes: manager}).Run(ctx, 0,
		func() []*v1.Pod { return []*v1.Pod{pod} },
		func(pod *v1.Pod, e *ephemeralstorage.Eviction) {
			fmt.Printf("%s: %s: %s\n", e.Pod, ephemeralstorage.Reason, e.Message())
			stop()
		})
	// Output: ns/web: Evicted: Usage of EmptyDir volume "scratch" exceeds the limit "1Mi".
}
