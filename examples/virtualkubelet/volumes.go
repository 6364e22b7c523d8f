package main

import (
	"context"
	"errors"
	"log/slog"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/podvol/podvol/examples/virtualkubelet/csidrivers"
	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/plugins/image"
	"github.com/podvol/podvol/volume/volumemanager"
)

// README: begin

// volumes are those of this node's pods. PutPod declares a pod, WaitForMounted waits
// for its volumes, ContainerMounts says what a container must be shown, DeletePod
// withdraws the pod.
type volumes struct {
	*volumemanager.Manager
	client  *cluster.Client          // reads single objects, and watches those that pods use
	size    *clusterhost.Allocatable // of the node, for containers without limits
	bundles *clusterhost.TrustBundles
}

// newVolumes takes what a kubelet has anyway: a clientset, the informer of this
// node's pods, a recorder of events, and a runtime that knows its containers.
func newVolumes(root, node string, api kubernetes.Interface, pods cache.SharedIndexInformer,
	events record.EventRecorder, containers volumemanager.PodContainers, drivers *csidrivers.Drivers, images *image.Plugin, mounter mount.Interface, adopt bool, log *slog.Logger) (*volumes, error) {
	client, err := cluster.FromInformers(nil, api, cluster.Config{Informers: drivers.Informers(pods), Shared: []string{}, Logger: log})
	if err != nil {
		return nil, err
	}
	told, bundles := clusterhost.NewEvents(events), clusterhost.NewTrustBundles(api, clusterhost.TrustBundlesConfig{Logger: log})
	v := &volumes{client: client, size: clusterhost.NewAllocatable(client, node), bundles: bundles}
	if v.Manager, err = volumemanager.New(volumemanager.Config{
		RootDir: root, NodeName: node, Objects: client, Plugins: append(plugins.All(images), drivers.Plugins()...), Containers: containers,
		Attachments: drivers.Attachments(), CSINode: drivers.Node(), Translator: drivers.Translator(), Resizes: clusterhost.NewNodeResizes(api),
		Events: told, Tokens: clusterhost.NewTokens(api, clusterhost.TokensConfig{Events: told, Logger: log}),
		PodCertificates: clusterhost.NewPodCertificates(api, types.NodeName(node)), Allocatable: v.size, TrustBundles: v.bundles, Logger: log, Adopt: adopt, Mounter: mounter, // nil: the machine's
	}); err != nil {
		v.close()
	}
	return v, err
}

func (v *volumes) close() { v.client.Close(); v.bundles.Close() }

// run keeps the volumes until ctx ends. Mounts stay for the next start.
func (v *volumes) run(ctx context.Context, node string, api kubernetes.Interface, log *slog.Logger) error {
	defer v.close()
	reported, config := make(chan error, 1), clusterhost.ReportConfig{Logger: log}
	go func() { reported <- clusterhost.ReportVolumes(ctx, api, v.client, node, v.Manager, config) }()
	return errors.Join(v.Run(ctx), <-reported)
}

// complete says which pods the API server knows, once the informer has synced and
// whenever a pod has gone: volumes of all others may be torn down from now on.
func (v *volumes) complete(known []any) {
	var kept []types.UID
	for _, pod := range known {
		if pod := pod.(*v1.Pod); pod.DeletionTimestamp == nil && !isOver(pod) {
			kept = append(kept, pod.UID)
		}
	}
	v.PodsComplete(kept...)
}

// README: end
