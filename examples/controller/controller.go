package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/objects/cluster/election"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// controller is one replica. Its informers run all the time, so that it can take
// over at once.
type controller struct {
	options   options
	clientset kubernetes.Interface
	informers informers.SharedInformerFactory
	objects   *cluster.Client
	plugins   *volume.VolumePluginMgr
	log       *slog.Logger
	health    election.Health
	synced    chan struct{} // closed when the informers have
}

func newController(o options, clientset kubernetes.Interface, mounter mount.Interface, log *slog.Logger) (*controller, error) {
	c := &controller{options: o, clientset: clientset, informers: informers.NewSharedInformerFactory(clientset, 0), log: log, synced: make(chan struct{})}
	var err error
	c.objects, err = cluster.FromInformers(c.informers, clientset, cluster.Config{
		Shared: []string{"PersistentVolumeClaim", "PersistentVolume", "StorageClass", "Pod"},
		Polled: []string{"Node", "VolumeAttributesClass"}, // it may get them only
		Logger: log,
	})
	if err != nil {
		return nil, err
	}
	c.plugins = new(volume.VolumePluginMgr)
	host := &volume.Host{
		RootDir: o.rootDir, NodeName: "podvol-controller", Mounter: mounter,
		Pods:     clusterhost.NewPodRunner(clientset, clusterhost.PodRunnerConfig{Logger: log}), // who empty volumes to recycle
		Releases: &persistentvolume.ReleaseVerifier{Objects: c.objects, Plugins: c.plugins},     // asked before data goes
	}
	plugin := nfs.New(nfs.Config{Provision: nfs.ProvisionConfig{OnDelete: o.onDelete}})
	return c, c.plugins.InitPlugins([]volume.VolumePlugin{plugin}, host)
}

// run campaigns, and works while it leads, until ctx ends.
func (c *controller) run(ctx context.Context) error {
	defer c.informers.Shutdown() // after they were told to end
	informing, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer c.objects.Close()
	c.informers.Start(informing.Done())
	if err := c.objects.WaitForSync(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	close(c.synced)
	if !c.options.elect {
		return c.work(ctx)
	}
	return election.Run(ctx, election.Config{
		Client: c.clientset.CoordinationV1(), Namespace: c.options.leaseNamespace, Name: c.options.leaseName,
		LeaseDuration: c.options.leaseDuration, RenewDeadline: c.options.renewDeadline, RetryPeriod: c.options.retryPeriod,
		Health: &c.health, Logger: c.log,
	}, c.work)
}

// work is what one replica does at a time.
func (c *controller) work(ctx context.Context) error {
	broadcaster := record.NewBroadcaster()
	stop := sync.OnceFunc(broadcaster.Shutdown)
	defer stop()
	broadcaster.StartRecordingToSink(&corev1.EventSinkImpl{Interface: c.clientset.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: "podvol-controller"})
	config := persistentvolume.ControllerConfig{
		Objects: c.objects, Plugins: c.plugins, Logger: c.log, Workers: c.options.workers,
		Events: clusterhost.NewEvents(recorder).Objects(),
	}
	if c.options.mode == modeProvisioner {
		config.Provisioners = map[string]string{c.options.provisioner: nfs.PluginName}
	}
	return persistentvolume.NewController(config).Run(ctx)
}

// ready says why this replica could not take over now.
func (c *controller) ready() error {
	select {
	case <-c.synced:
		return nil
	default:
		return fmt.Errorf("the informers have not synced")
	}
}
