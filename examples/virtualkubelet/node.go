package main

import (
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
	"k8s.io/client-go/tools/record"

	"github.com/podvol/podvol/mount"
)

// config is what a node is made of.
type config struct {
	api     kubernetes.Interface
	name    string // of the node
	dir     string // below which everything is
	address string
	hold    bool            // pods' volumes are mounted, and nothing is run
	mounter mount.Interface // nil: the machine's
	log     *slog.Logger
	pause   time.Duration // before a container's first restart
}

// workers is how many pods virtual-kubelet hands over at a time.
const workers = 10

// run is the node until ctx ends. What it has mounted stays; its processes do not.
func run(ctx context.Context, c config) error {
	ctx, stop := context.WithCancel(vklog.WithLogger(ctx, newLogger(c.log)))
	defer stop()
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: c.api.CoreV1().Events("")})
	events := broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: "podvol-virtualkubelet", Host: c.name})

	left, err := newLeftovers(filepath.Join(c.dir, "containers"))
	if err != nil {
		return err
	}
	provider := newProvider(&processes{dir: left.dir, hold: c.hold, address: c.address, events: events, left: left, firstPause: c.pause}, c.log)

	// This one informer of the node's pods serves virtual-kubelet, podvol and the
	// provider.
	factory := informers.NewSharedInformerFactoryWithOptions(c.api, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", c.name).String()
	}))
	defer factory.Shutdown()
	defer stop()
	pods := factory.Core().V1().Pods()
	provider.volumes, err = newVolumes(filepath.Join(c.dir, "volumes"), c.name, c.api, pods.Informer(), events, provider, c.mounter, c.log)
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
		kept <- provider.volumes.run(keeping, c.name, c.api, c.log)
	}()
	defer provider.volumes.Subscribe(provider.volumeChanged)()
	var lives sync.WaitGroup
	provider.begin = func(l *life) { lives.Go(func() { l.run(ctx) }) }

	err = serve(ctx, c, provider, factory, events)
	stop()
	lives.Wait()
	stopKeeping()
	return errors.Join(err, <-kept)
}

// serve drives the provider by virtual-kubelet's controllers until ctx ends.
func serve(ctx context.Context, c config, p *provider, factory informers.SharedInformerFactory, events record.EventRecorder) error {
	idle := informers.NewSharedInformerFactory(c.api, 0) // virtual-kubelet asks for these, and they are not started
	pods := factory.Core().V1().Pods()
	podController, err := node.NewPodController(node.PodControllerConfig{
		PodClient: patching{c.api.CoreV1()}, PodInformer: copying{pods}, EventRecorder: events, Provider: p,
		ConfigMapInformer: idle.Core().V1().ConfigMaps(), SecretInformer: idle.Core().V1().Secrets(), ServiceInformer: idle.Core().V1().Services(),
		SkipDownwardAPIResolution: true, // package containerenv does it, from single config maps and secrets
	})
	if err != nil {
		return err
	}
	nodeController, err := newNodeController(c)
	if err != nil {
		return err
	}
	known := pods.Informer().GetStore().List
	if _, err := pods.Informer().AddEventHandler(p.handler(known)); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if p.volumes.client.WaitForSync(ctx) != nil {
		return nil // ctx has ended
	}
	p.complete(known)

	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 2)
	go func() { ended <- podController.Run(running, workers) }()
	go func() { ended <- nodeController.Run(running) }()
	err = <-ended
	asked := ctx.Err() != nil
	stop()
	if err = errors.Join(err, <-ended); err != nil && !asked { // a request that the end has cut off is no failure
		return fmt.Errorf("virtual-kubelet: %w", err)
	}
	return nil
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
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "VirtualKubeletReady", LastTransitionTime: now()}},
			NodeInfo:   v1.NodeSystemInfo{OperatingSystem: goruntime.GOOS, Architecture: goruntime.GOARCH, KubeletVersion: "podvol-virtualkubelet"},
		},
	}
}
