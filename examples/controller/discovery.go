package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/localdiscovery"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster"
)

// localProvisioner is the reclaimer that local volumes name. It is none of Kubernetes' own, so
// that kube-controller-manager leaves them alone.
const localProvisioner = "local.podvol.io"

// discovery offers one node's disks. One process runs on each node, and needs no lease.
type discovery struct {
	clientset  kubernetes.Interface
	informers  informers.SharedInformerFactory
	objects    *cluster.Client
	discoverer localdiscovery.Discoverer
	log        *slog.Logger
	synced     chan struct{} // closed when the informer has
}

// parseDisks reads values of --discover, DIR=CLASS or DIR.
func parseDisks(values []string) (classes []localdiscovery.Class, err error) {
	for _, value := range values {
		dir, class, _ := strings.Cut(value, "=")
		if !path.IsAbs(dir) {
			return nil, fmt.Errorf("--discover %q must begin with an absolute directory", value)
		}
		classes = append(classes, localdiscovery.Class{Dir: dir, StorageClass: class})
	}
	return classes, nil
}

func newDiscovery(o options, clientset kubernetes.Interface, mounts mount.Table, log *slog.Logger) (*discovery, error) {
	classes, err := parseDisks(o.discover)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	d := &discovery{clientset: clientset, informers: informers.NewSharedInformerFactory(clientset, 0), log: log, synced: make(chan struct{})}
	d.objects, err = cluster.FromInformers(d.informers, clientset, cluster.Config{Shared: []string{"PersistentVolume"}, Polled: []string{"Node"}, Logger: log})
	if err != nil {
		return nil, err
	}
	d.discoverer = localdiscovery.Discoverer{Objects: d.objects, Mounts: mounts, NodeName: o.nodeName, Classes: classes, Provisioner: localProvisioner, Logger: log}
	return d, nil
}

// run offers disks until ctx ends.
func (d *discovery) run(ctx context.Context) error {
	defer d.informers.Shutdown() // after they were told to end
	informing, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer d.objects.Close()
	d.informers.Start(informing.Done())
	if err := d.objects.WaitForSync(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if err := d.takeNode(ctx); err != nil {
		return err
	}
	close(d.synced)
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&corev1.EventSinkImpl{Interface: d.clientset.CoreV1().Events("")})
	d.discoverer.Events = broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: "podvol-local-discovery", Host: d.discoverer.NodeName})
	return d.discoverer.Run(ctx)
}

// takeNode has volumes pinned to the node's own label, and gives them its zone and region.
func (d *discovery) takeNode(ctx context.Context) error {
	node, err := objects.Get[*v1.Node](ctx, d.objects, volume.NewObjectRef("Node", "", d.discoverer.NodeName))
	if err != nil {
		return fmt.Errorf("the node %s, whose disks are to be offered: %w", d.discoverer.NodeName, err)
	}
	d.discoverer.HostLabel = node.Labels[v1.LabelHostname]
	d.discoverer.Labels = make(map[string]string)
	maps.Copy(d.discoverer.Labels, node.Labels)
	maps.DeleteFunc(d.discoverer.Labels, func(key, _ string) bool { return key != v1.LabelTopologyZone && key != v1.LabelTopologyRegion })
	return nil
}

// handler serves health checks.
func (d *discovery) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { say(w, nil, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-d.synced:
			say(w, nil, "ok")
		default:
			say(w, fmt.Errorf("the informer has not synced"), "")
		}
	})
	return mux
}

// nodeName is the node's, as a DaemonSet's manifest sets it.
func nodeName() string { return os.Getenv("NODE_NAME") }
