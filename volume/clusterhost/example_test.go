package clusterhost_test

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

// A kubelet of one's own gives the volume manager all that it needs of the cluster. The
// clientset is the node's, with the rights that the Node authorizer gives it.
func Example() {
	run := func(ctx context.Context, clientset kubernetes.Interface, nodeName string) error {
		// That identity may list neither claims nor volumes: nothing is shared, and all
		// that pods use is read object by object.
		objs, err := cluster.FromInformers(nil, clientset, cluster.Config{Shared: []string{}})
		if err != nil {
			return err
		}
		defer objs.Close()

		broadcaster := record.NewBroadcaster(record.WithContext(ctx))
		defer broadcaster.Shutdown()
		broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: clientset.CoreV1().Events("")})
		events := clusterhost.NewEvents(broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: "my-kubelet", Host: nodeName}))

		bundles := clusterhost.NewTrustBundles(clientset, clusterhost.TrustBundlesConfig{})
		defer bundles.Close()
		node, err := volumemanager.New(volumemanager.Config{
			RootDir: "/var/lib/my-kubelet", NodeName: nodeName, Objects: objs, Plugins: plugins.All(),
			Tokens:       clusterhost.NewTokens(clientset, clusterhost.TokensConfig{Events: events}),
			TrustBundles: bundles,
			Allocatable:  clusterhost.NewAllocatable(objs, nodeName),
			Events:       events,
		})
		if err != nil {
			return err
		}
		// Only nodes with attachable volumes need this: their volumes wait for it.
		ctx, cancel := context.WithCancel(ctx)
		reported := make(chan error, 1)
		go func() {
			reported <- clusterhost.ReportVolumes(ctx, clientset, objs, nodeName, node, clusterhost.ReportConfig{})
		}()
		err = node.Run(ctx)
		cancel()
		return errors.Join(err, <-reported)
	}
	_ = run
}

// A controller that recycles volumes by pods runs them so: it is the Pods of the
// volume.Host that its plugins have.
func ExampleNewPodRunner() {
	recycle := func(ctx context.Context, clientset kubernetes.Interface, pod *v1.Pod, mayRun func(context.Context) error) error {
		return clusterhost.NewPodRunner(clientset, clusterhost.PodRunnerConfig{}).RunPod(ctx, pod, mayRun, func(eventType, message string) {})
	}
	_ = recycle
}
