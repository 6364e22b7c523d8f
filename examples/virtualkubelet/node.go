package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	vklog "github.com/virtual-kubelet/virtual-kubelet/log"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/podvol/podvol/examples/nodehttp"
	"github.com/podvol/podvol/examples/virtualkubelet/criruntime"
	"github.com/podvol/podvol/examples/virtualkubelet/csidrivers"
	"github.com/podvol/podvol/examples/virtualkubelet/kubeletapi"
	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
	"github.com/podvol/podvol/examples/virtualkubelet/processes"
	"github.com/podvol/podvol/examples/virtualkubelet/staticpods"
	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume/plugins/image"
	"github.com/podvol/podvol/volume/volumemanager"
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
	rootDir       string // of the volumes; empty: below dir
	adopt         bool   // what a kubelet has left
	logMaxSize    int64  // of a container's log before it is rotated
	logMaxFiles   int
	csi           bool   // CSI drivers may register themselves
	cgroupDriver  string // of a kubelet that may come back; empty: none
	manifests     string // the directory of static pods; empty: there are none
	// The kubelet's endpoints; without a certificate there are none.
	certFile, keyFile, clientCAFile string
	port                            int
	images                          image.Config    // how images are pulled for volumes
	mounter                         mount.Interface // nil: the machine's
	log                             *slog.Logger
	pause                           time.Duration // before a container's second restart
	measureEvery                    time.Duration // what pods take of the disk; 0: every 10 seconds
}

// root is the root directory of the volumes.
func (c config) root() string { return cmp.Or(c.rootDir, filepath.Join(c.dir, "volumes")) }

func (c config) imagePlugin() *image.Plugin {
	c.images.Logger = c.log
	return image.New(c.images)
}

// run is the node until ctx ends. What it has mounted stays; its processes do not.
func run(ctx context.Context, c config) error {
	ctx, stop := context.WithCancel(vklog.WithLogger(ctx, newLogger(c.log)))
	defer stop()
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: c.api.CoreV1().Events("")})
	events := broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: "podvol-virtualkubelet", Host: c.name})

	if err := os.MkdirAll(c.dir, 0o750); err != nil {
		return err
	}
	runtime, closeRuntime, err := newRuntime(ctx, c, events)
	if err != nil {
		return err
	}
	defer closeRuntime()
	images := c.imagePlugin()
	lives := podlife.New(podlife.Config{ImageRefs: images.ImageRefs, API: c.api, Runtime: runtime, Events: events, Log: c.log, NodeIP: c.address, RootDir: c.root(), FirstPause: c.pause})

	// This one informer of the node's pods serves podvol and the pods' lives.
	factory := informers.NewSharedInformerFactoryWithOptions(c.api, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", c.name).String()
	}))
	defer factory.Shutdown()
	defer stop()
	pods := factory.Core().V1().Pods()
	var csi *csidrivers.Drivers
	if c.csi {
		if csi, err = csidrivers.New(c.name, c.api, c.log); err != nil {
			return err
		}
	}
	volumes, err := newVolumes(c.root(), c.name, c.api, pods.Informer(), events, lives, csi, images, c.mounter, c.adopt, c.log)
	if err != nil {
		return err
	}

	// What ends last is begun first: containers end before the volumes' manager
	// does, and no pods are created by then.
	keeping, stopKeeping := context.WithCancel(context.WithoutCancel(ctx))
	defer stopKeeping()
	defer csi.Start()()
	kept := make(chan error, 1)
	go func() {
		defer stop() // such as another agent in this directory
		kept <- volumes.run(keeping, c.name, c.api, c.log)
	}()
	defer volumes.Subscribe(lives.VolumeChanged)()
	lives.Begin(ctx, volumes, volumes.client, volumes.size)

	api, stopCounting, err := newServer(ctx, c, lives, volumes.Manager, runtime)
	defer stopCounting()
	if err == nil {
		err = serve(ctx, c, lives, volumes, factory, newNodeObject(ctx, c, runtime, api), api)
	}
	stop()
	lives.Wait()
	stopKeeping()
	return errors.Join(err, <-kept)
}

// newRuntime is what runs the containers.
func newRuntime(ctx context.Context, c config, events record.EventRecorder) (r podlife.Runtime, closed func() error, err error) {
	nothing := func() error { return nil }
	switch {
	case c.hold:
		return processes.Held{}, nothing, nil
	case c.endpoint == "":
		r, err = processes.New(ctx, filepath.Join(c.dir, "containers"))
		return r, nothing, err
	}
	behind, err := criruntime.New(ctx, criruntime.Config{Endpoint: c.endpoint, Node: c.name, Dir: filepath.Join(c.dir, "containers"),
		HostNetwork: c.hostNetwork, ClusterDNS: c.clusterDNS, ClusterDomain: c.clusterDomain,
		CgroupDriver: c.cgroupDriver, Adopt: c.adopt, RootDir: c.root(), LogMaxSize: c.logMaxSize, LogMaxFiles: c.logMaxFiles, Log: c.log,
		Tell: func(pod *v1.Pod, eventType, reason, message string) { events.Event(pod, eventType, reason, message) }})
	if err != nil {
		return nil, nil, err
	}
	return behind, behind.Close, nil
}

// newServer are the kubelet's endpoints; nil: there are none, or the volumes' manager has
// ended. It counts what happens to volumes from then on.
func newServer(ctx context.Context, c config, lives *podlife.Pods, volumes *volumemanager.Manager, runtime podlife.Runtime) (server *kubeletapi.Server, stop func(), err error) {
	nothing := func() {}
	behind, ok := runtime.(*criruntime.Runtime)
	if c.certFile == "" || !ok || volumes.WaitForRecovery(ctx) != nil {
		return nil, nothing, nil
	}
	metrics := nodehttp.NewMetrics(volumes, volumes.Explain())
	pages, stopPages := newPage(c.name, volumes)
	server, err = kubeletapi.Listen(kubeletapi.Config{Address: net.JoinHostPort(c.address, strconv.Itoa(c.port)), CertFile: c.certFile, KeyFile: c.keyFile,
		ClientCAFile: c.clientCAFile, Node: c.name, API: c.api, Pods: lives, Runtime: behind, Volumes: volumes, Metrics: metrics.Handler(), Pages: pages, Log: c.log})
	if err != nil {
		stopPages()
		return nil, nothing, err
	}
	stopMetrics := volumes.Subscribe(metrics.Observe)
	return server, func() { stopMetrics(); stopPages() }, nil
}

// serve has the pods of the API server live, keeps the node's object, and answers at api,
// until ctx ends.
func serve(ctx context.Context, c config, lives *podlife.Pods, volumes *volumes, factory informers.SharedInformerFactory, object *v1.Node, api *kubeletapi.Server) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if api != nil {
		beside.Go(func() {
			if err := api.Serve(ctx); err != nil {
				c.log.Error("the kubelet's endpoints are not served any more", "error", err)
			}
		})
	}
	if !c.csi {
		beside.Go(func() { csidrivers.Withdraw(ctx, c.name, c.api, c.log) })
	}
	nodeController, err := newNodeController(c, object)
	if err != nil {
		return err
	}
	pods := factory.Core().V1().Pods().Informer()
	complete, static, err := completion(ctx, c, lives, func() { volumes.complete(pods.GetStore().List()) })
	if err != nil {
		return err
	}
	beside.Go(func() { static(ctx) })
	beside.Go(func() { evict(ctx, c, lives, volumes) })
	following, err := pods.AddEventHandler(lives.Handler(func() { complete(false) }))
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if volumes.client.WaitForSync(ctx) != nil || !cache.WaitForCacheSync(ctx.Done(), following.HasSynced) {
		return nil // ctx has ended
	}
	beside.Go(func() {
		if complete(true) {
			lives.RemoveUnknown(ctx)
			lives.RemoveMirrors(ctx, pods.GetStore().List())
			lives.RemoveLate(ctx, appeared(lives.Runtime))
		}
	})
	if err = nodeController.Run(ctx); err != nil && ctx.Err() == nil { // a request that the end has cut off is no failure
		return fmt.Errorf("virtual-kubelet: %w", err)
	}
	return nil
}

// appeared tells of pods in the runtime; nil: nothing tells.
func appeared(runtime podlife.Runtime) <-chan struct{} {
	if behind, ok := runtime.(*criruntime.Runtime); ok {
		return behind.Appeared()
	}
	return nil
}

// completion returns what to call when the API server's pods are known, and when one of
// them has gone: it calls known, once the static pods are known, too. The first call waits
// for that, and returns false where the node has ended before. Static follows the static
// pods.
func completion(ctx context.Context, c config, lives *podlife.Pods, known func()) (complete func(first bool) bool, static func(context.Context), err error) {
	if c.manifests == "" {
		return func(bool) bool { known(); return true }, func(context.Context) {}, nil
	}
	running, err := leftStatic(ctx, c, lives.Runtime)
	if err != nil {
		return nil, nil, err
	}
	follower, err := staticpods.New(staticpods.Config{Dir: c.manifests, KnownFile: filepath.Join(c.dir, "static-pods"),
		AdoptedFile: filepath.Join(c.dir, "adopted-static-pods"), Running: running, NodeName: c.name, Pods: lives, Log: c.log})
	if err != nil {
		return nil, nil, err
	}
	ended := make(chan struct{})
	static = func(ctx context.Context) {
		defer close(ended)
		follower.Run(ctx)
	}
	var begun atomic.Bool
	return func(first bool) bool {
		if first {
			select {
			case <-follower.Complete():
				begun.Store(true)
			case <-ended:
				return false
			}
		}
		if begun.Load() {
			known()
		}
		return begun.Load()
	}, static, nil
}

// leftStatic are the static pods that a kubelet has left running.
func leftStatic(ctx context.Context, c config, runtime podlife.Runtime) (map[types.NamespacedName]types.UID, error) {
	behind, ok := runtime.(*criruntime.Runtime)
	if !ok || !c.adopt {
		return nil, nil
	}
	return behind.StaticPods(ctx)
}

// isOver reports whether a pod has ended.
func isOver(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}
