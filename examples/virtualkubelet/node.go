package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"time"

	vklog "github.com/virtual-kubelet/virtual-kubelet/log"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/podvol/podvol/examples/virtualkubelet/criruntime"
	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
	"github.com/podvol/podvol/examples/virtualkubelet/processes"
	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume/containerenv"
)

// config is what a node is made of.
type config struct {
	api     kubernetes.Interface
	name    string // of the node
	dir     string // below which everything is
	address string
	hold    bool // pods' volumes are mounted, and nothing is run
	noTaint bool
	// endpoint is the socket of a container runtime; empty: containers are processes.
	endpoint      string
	hostNetwork   bool
	clusterDNS    []string
	clusterDomain string
	rootDir       string          // of the volumes; empty: below dir
	mounter       mount.Interface // nil: the machine's
	log           *slog.Logger
	pause         time.Duration // before a container's second restart
}

// run is the node until ctx ends. What it has mounted stays; its processes do not.
func run(ctx context.Context, c config) error {
	ctx, stop := context.WithCancel(vklog.WithLogger(ctx, newLogger(c.log)))
	defer stop()
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: c.api.CoreV1().Events("")})
	events := broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: "podvol-virtualkubelet", Host: c.name})

	runtime, closeRuntime, err := newRuntime(ctx, c)
	if err != nil {
		return err
	}
	defer closeRuntime()
	lives := podlife.New(podlife.Config{API: c.api, Runtime: runtime, Events: events, Log: c.log, NodeIP: c.address, FirstPause: c.pause})

	// This one informer of the node's pods serves podvol and the pods' lives.
	factory := informers.NewSharedInformerFactoryWithOptions(c.api, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", c.name).String()
	}))
	defer factory.Shutdown()
	defer stop()
	pods := factory.Core().V1().Pods()
	volumes, err := newVolumes(cmp.Or(c.rootDir, filepath.Join(c.dir, "volumes")), c.name, c.api, pods.Informer(), events, lives, c.mounter, c.log)
	if err != nil {
		return err
	}

	// What ends last is begun first: containers end before the volumes' manager
	// does, and no pods are created by then.
	keeping, stopKeeping := context.WithCancel(context.WithoutCancel(ctx))
	defer stopKeeping()
	kept := make(chan error, 1)
	go func() {
		defer stop() // such as another agent in this directory
		kept <- volumes.run(keeping, c.name, c.api, c.log)
	}()
	defer volumes.Subscribe(lives.VolumeChanged)()
	lives.Begin(ctx, volumes, containerenv.Sources{Objects: volumes.client, Allocatable: volumes.size})

	err = serve(ctx, c, lives, volumes, factory)
	stop()
	lives.Wait()
	stopKeeping()
	return errors.Join(err, <-kept)
}

// newRuntime is what runs the containers.
func newRuntime(ctx context.Context, c config) (r podlife.Runtime, closed func() error, err error) {
	nothing := func() error { return nil }
	switch {
	case c.hold:
		return processes.Held{}, nothing, nil
	case c.endpoint == "":
		r, err = processes.New(ctx, filepath.Join(c.dir, "containers"))
		return r, nothing, err
	}
	behind, err := criruntime.New(ctx, criruntime.Config{Endpoint: c.endpoint, Node: c.name, Dir: filepath.Join(c.dir, "containers"),
		HostNetwork: c.hostNetwork, ClusterDNS: c.clusterDNS, ClusterDomain: c.clusterDomain, Log: c.log})
	if err != nil {
		return nil, nil, err
	}
	return behind, behind.Close, nil
}

// serve has the pods of the API server live, and keeps the node's object, until ctx ends.
func serve(ctx context.Context, c config, lives *podlife.Pods, volumes *volumes, factory informers.SharedInformerFactory) error {
	nodeController, err := newNodeController(c)
	if err != nil {
		return err
	}
	pods := factory.Core().V1().Pods().Informer()
	complete := func() { volumes.complete(pods.GetStore().List()) }
	following, err := pods.AddEventHandler(lives.Handler(complete))
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if volumes.client.WaitForSync(ctx) != nil || !cache.WaitForCacheSync(ctx.Done(), following.HasSynced) {
		return nil // ctx has ended
	}
	complete()
	var removing sync.WaitGroup
	removing.Go(func() { lives.RemoveUnknown(ctx) })
	defer removing.Wait()
	if err = nodeController.Run(ctx); err != nil && ctx.Err() == nil { // a request that the end has cut off is no failure
		return fmt.Errorf("virtual-kubelet: %w", err)
	}
	return nil
}

// isOver reports whether a pod has ended.
func isOver(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// newNodeController keeps the node's object and its lease.
func newNodeController(c config) (*node.NodeController, error) {
	return node.NewNodeController(node.NaiveNodeProvider{}, nodeObject(c), endingNodes{c.api.CoreV1().Nodes()},
		node.WithNodeEnableLeaseV1(c.api.CoordinationV1().Leases(v1.NamespaceNodeLease), 0))
}

// nodeObject describes the node to the API server.
func nodeObject(c config) *v1.Node {
	size := v1.ResourceList{
		v1.ResourceCPU:  *resource.NewQuantity(int64(goruntime.NumCPU()), resource.DecimalSI),
		v1.ResourcePods: *resource.NewQuantity(110, resource.DecimalSI),
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		size[v1.ResourceMemory] = *resource.NewQuantity(int64(info.Totalram)*int64(info.Unit), resource.BinarySI)
	}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: c.name, Labels: map[string]string{
			"type": "virtual-kubelet", v1.LabelHostname: c.name, v1.LabelOSStable: goruntime.GOOS, v1.LabelArchStable: goruntime.GOARCH}},
		// Only pods that tolerate it are run here: they see the machine's root.
		Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "virtual-kubelet.io/provider", Value: "podvol", Effect: v1.TaintEffectNoSchedule}}},
		Status: v1.NodeStatus{
			Capacity: size, Allocatable: size,
			Addresses:  []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: c.address}},
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "VirtualKubeletReady", LastTransitionTime: metav1.Now().Rfc3339Copy()}},
			NodeInfo:   v1.NodeSystemInfo{OperatingSystem: goruntime.GOOS, Architecture: goruntime.GOARCH, KubeletVersion: "podvol-virtualkubelet"},
		},
	}
}
