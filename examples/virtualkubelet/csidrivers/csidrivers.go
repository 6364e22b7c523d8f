// Package csidrivers lets a node of a cluster mount the volumes of CSI drivers.
package csidrivers

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/csitranslation"
	"github.com/podvol/podvol/volume/plugins/csi"
)

// AttachAnnotation, with the value "true", has the cluster's attach/detach controller attach
// volumes to a node.
const AttachAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"

// Drivers are the CSI drivers of a node, which register themselves below plugins_registry of
// its root directory. Nil is a node without any.
type Drivers struct {
	plugin      *csi.Plugin
	translator  *csitranslation.Translator
	attachments clusterhost.Attachments
	node        *clusterhost.CSINode
	known       cache.SharedIndexInformer // the cluster's CSIDriver objects
}

// New returns the drivers of a node. It asks nothing yet.
func New(node string, api kubernetes.Interface, log *slog.Logger) (*Drivers, error) {
	plugin, err := csi.New(csi.Config{Logger: log})
	if err != nil {
		return nil, err
	}
	translator := csitranslation.New()
	config := clusterhost.CSINodeConfig{MigratedPlugins: translator.MigratedPlugins(), Logger: log}
	return &Drivers{plugin: plugin, translator: translator, attachments: clusterhost.NewAttachments(api), node: clusterhost.NewCSINode(api, node, config),
		known: informers.NewSharedInformerFactory(api, 0).Storage().V1().CSIDrivers().Informer()}, nil
}

// Withdraw tells the cluster, for a node that takes no drivers, that it has none: an earlier
// process may have published some. It retries until that is done, or ctx ends.
func Withdraw(ctx context.Context, node string, api kubernetes.Interface, log *slog.Logger) {
	published := clusterhost.NewCSINode(api, node, clusterhost.CSINodeConfig{Logger: log})
	pause := retry.Pause{First: time.Second, Last: 5 * time.Minute}
	for {
		err := published.WithdrawAll(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		log.Warn("the cluster may take this node for one with CSI drivers, which it has not any more", "error", err, "retry", pause.Due())
		if !pause.Wait(ctx) {
			return
		}
	}
}

// Informers returns the given informer of pods, and the one of the CSIDriver objects.
func (d *Drivers) Informers(pods cache.SharedIndexInformer) map[string]cache.SharedIndexInformer {
	if d == nil {
		return map[string]cache.SharedIndexInformer{"Pod": pods}
	}
	return map[string]cache.SharedIndexInformer{"Pod": pods, "CSIDriver": d.known}
}

// Plugins returns the plugins to use beside podvol's own.
func (d *Drivers) Plugins() []volume.VolumePlugin {
	if d == nil {
		return nil
	}
	return []volume.VolumePlugin{d.plugin}
}

// Translator returns what makes in-tree volumes, such as gcePersistentDisk, volumes of drivers.
func (d *Drivers) Translator() volume.Translator {
	if d == nil {
		return nil
	}
	return d.translator
}

// Attachments returns the reader of VolumeAttachments: volumes wait until they are attached.
func (d *Drivers) Attachments() volume.AttachmentGetter {
	if d == nil {
		return nil
	}
	return d.attachments
}

// Node returns the publisher that tells the cluster of the node's drivers.
func (d *Drivers) Node() volume.CSINodePublisher {
	if d == nil {
		return nil
	}
	return d.node
}

// Start reads the CSIDriver objects until stop is called, which waits for the end of that
// and ends the connections to drivers.
func (d *Drivers) Start() (stop func()) {
	if d == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.known.RunWithContext(ctx)
	}()
	return func() {
		cancel()
		<-ended
		_ = d.plugin.Close()
	}
}
