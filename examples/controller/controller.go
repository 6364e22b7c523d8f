package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/attachdetach"
	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/csitranslation"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/objects/cluster/election"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/release"
	"github.com/podvol/podvol/volume/plugins/iscsi"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// controller is one replica. Its informers run all the time, so that it can take
// over at once.
type controller struct {
	options   options
	clientset kubernetes.Interface
	leases    coordinationv1.LeasesGetter
	informers informers.SharedInformerFactory
	objects   *cluster.Client
	plugins   *volume.VolumePluginMgr
	log       *slog.Logger
	health    election.Health
	synced    chan struct{}                           // closed when the informers have
	attaching atomic.Pointer[attachdetach.Controller] // of the last term; nil: there was none
}

func newController(o options, clientset kubernetes.Interface, leases coordinationv1.LeasesGetter, mounter mount.Interface, log *slog.Logger) (*controller, error) {
	c := &controller{options: o, clientset: clientset, leases: leases, informers: informers.NewSharedInformerFactory(clientset, 0), log: log, synced: make(chan struct{})}
	var err error
	kinds := cluster.Config{
		Shared: []string{"PersistentVolumeClaim", "PersistentVolume", "StorageClass", "Pod"},
		Polled: []string{"Node", "VolumeAttributesClass"}, // it may get them only
		Logger: log,
	}
	if o.mode == modeAttach {
		kinds = cluster.Config{Shared: []string{"Pod", "PersistentVolumeClaim", "PersistentVolume", "Node", "VolumeAttachment", "CSIDriver", "CSINode"}, Logger: log}
	}
	if c.objects, err = cluster.FromInformers(c.informers, clientset, kinds); err != nil {
		return nil, err
	}
	c.plugins = new(volume.VolumePluginMgr)
	if o.mode == modeAttach {
		// Plugins that attach, or have their volumes given to one node at a time.
		host := &volume.Host{RootDir: o.rootDir, NodeName: "podvol-controller", Mounter: mounter, Attachments: clusterhost.NewAttachments(clientset)}
		if err := c.plugins.InitPlugins([]volume.VolumePlugin{iscsi.New(iscsi.Config{Logger: log})}, host); err != nil {
			c.objects.Close()
			return nil, err
		}
		return c, nil
	}
	host := &volume.Host{
		RootDir: o.rootDir, NodeName: "podvol-controller", Mounter: mounter,
		Pods:     clusterhost.NewPodRunner(clientset, clusterhost.PodRunnerConfig{Logger: log}), // who empty volumes to recycle
		Releases: &release.Verifier{Objects: c.objects, Plugins: c.plugins},                     // asked before data goes
	}
	plugin := nfs.New(nfs.Config{Provision: nfs.ProvisionConfig{OnDelete: o.onDelete}})
	err = c.plugins.InitPlugins([]volume.VolumePlugin{plugin}, host)
	if err == nil {
		err = c.config().Validate() // before it campaigns
	}
	if err != nil {
		c.objects.Close()
	}
	return c, err
}

// config is what the work is made of, without who hears of it.
func (c *controller) config() persistentvolume.ControllerConfig {
	config := persistentvolume.ControllerConfig{Objects: c.objects, Plugins: c.plugins, Logger: c.log, Workers: c.options.workers}
	if c.options.mode == modeProvisioner {
		config.Provisioners = map[string]string{c.options.provisioner: nfs.PluginName}
	} else {
		config.MigratedTo = csitranslation.New().MigratedTo
	}
	return config
}

// leads reports whether this replica works.
func (c *controller) leads() bool { return !c.options.elect || c.health.State().Leading }

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
	err := election.Run(ctx, election.Config{
		Client: c.leases, Namespace: c.options.leaseNamespace, Name: c.options.leaseName,
		LeaseDuration: c.options.leaseDuration, RenewDeadline: c.options.renewDeadline, RetryPeriod: c.options.retryPeriod,
		Health: &c.health, Logger: c.log,
	}, c.work)
	if errors.Is(err, election.ErrNotReturned) {
		c.log.Error("the process ends at once", "error", err)
		os.Exit(1) // without waiting for anything: another replica may work from now on
	}
	return err
}

// work is what one replica does at a time.
func (c *controller) work(ctx context.Context) error {
	broadcaster := record.NewBroadcaster()
	stop := sync.OnceFunc(broadcaster.Shutdown)
	defer stop()
	broadcaster.StartRecordingToSink(&corev1.EventSinkImpl{Interface: c.clientset.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: "podvol-controller"})
	events := clusterhost.NewEvents(recorder).Objects()
	if c.options.mode == modeAttach {
		return c.attach(ctx, events)
	}
	config := c.config()
	config.Events = events
	return persistentvolume.NewController(config).Run(ctx)
}

// attach decides what is attached where. The volumes of CSI drivers are attached by their
// external-attachers, those of plugins here.
func (c *controller) attach(ctx context.Context, events attachdetach.EventRecorder) error {
	attaching := attachdetach.New(attachdetach.Config{Objects: c.objects, Plugins: c.plugins, Events: events, Logger: c.log, DetachAfter: c.options.detachAfter,
		Workers: c.options.workers, Translator: csitranslation.New()})
	c.attaching.Store(attaching)
	attacher := attachdetach.NewAttacher(attachdetach.AttacherConfig{Objects: c.objects, Plugins: c.plugins, Logger: c.log})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		defer cancel() // neither works without the other
		ended <- attacher.Run(ctx)
	}()
	err := attaching.Run(ctx)
	cancel()
	return errors.Join(err, <-ended)
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
