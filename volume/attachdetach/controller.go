package attachdetach

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/latest"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/objects"
)

// ErrRunOnce says that a [Controller] was run a second time.
var ErrRunOnce = errors.New("a controller can be run only once")

// ManagedAnnotation is on the nodes whose volumes a controller attaches: its value is "true".
// A kubelet writes it unless it is configured with enableControllerAttachDetach: false.
const ManagedAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"

// OutOfServiceTaint is the key of the taint by which an administrator says that a node is
// switched off, and will not write to its volumes (KEP-2268).
const OutOfServiceTaint = v1.TaintNodeOutOfService

const (
	kindNode    = "Node"
	kindDriver  = "CSIDriver"
	kindCSINode = "CSINode"
)

// EventRecorder takes events about pods; client-go's recorders are some. It must not block.
// It is called from several goroutines at once. The object is only read.
type EventRecorder interface {
	Event(object runtime.Object, eventType, reason, message string)
}

// Config is what a [Controller] is made of.
type Config struct {
	// Objects are the API's, or a store's. They may answer from a cache that is behind
	// ([objects.Cached]). All pods, claims, PersistentVolumes, Nodes, VolumeAttachments,
	// CSIDrivers and CSINodes are watched.
	Objects objects.Client
	// Plugins name their volumes, and say which must be attached
	// ([volume.AttachableVolumePlugin]). Volumes of CSI drivers need none: the CSIDriver
	// objects say it. Nil: only those are attached.
	Plugins *volume.VolumePluginMgr
	// Translator has in-tree volumes that are CSI drivers' by now attached as these, also
	// inline ones, to nodes whose CSINode says that they translate them, too
	// (storage.alpha.kubernetes.io/migrated-plugins). The drivers' external-attachers must.
	// Nil: they are not attached.
	Translator volume.Translator
	// Events takes what the controller has to say about pods that wait for a volume; nil
	// drops it.
	Events EventRecorder
	// Logger takes failed attempts, which are tried again; nil drops them.
	Logger *slog.Logger
	// DetachAfter is how long a node must have been not Ready before its volumes are
	// detached though it may still write to them. Data is lost where it does: one that is
	// switched off is better tainted ([OutOfServiceTaint]), or its Node deleted.
	// 0: never. Kubernetes' controller does so after six minutes by default. It is counted from
	// when this controller has first seen the node so, and anew after a restart.
	DetachAfter time.Duration
	// Workers is how many volumes and nodes are worked on at the same time; 0 means 16.
	Workers int
}

// Controller attaches and detaches by VolumeAttachments.
//
//   - It works on changes and polls nothing.
//   - A volume that one node may have (ReadWriteOnce, ReadWriteOncePod, also beside
//     ReadOnlyMany) gets its second VolumeAttachment once the first is gone: that its deletion has
//     begun is not enough.
//   - A volume is detached from a node if no pod there wants it, the node's status does not
//     list it in use, and lists it attached no more. One conditional write of that status
//     orders both: a node mounts nothing that it does not see listed.
//   - A node that is gone (its Node is deleted), or is not Ready and has the
//     [OutOfServiceTaint], is not waited for. Pods there that are being deleted want nothing.
//   - A failed look-up never counts as not wanted.
//   - Kubernetes' controller makes no VolumeAttachment for a plugin's volume. What a node lists
//     from it counts as attached, until no pod there wants it and the node does not use it. So
//     do inline volumes of plugins, which the API takes in no VolumeAttachment: they are listed
//     for each node that wants them.
//   - Nodes without [ManagedAnnotation] are left alone. So are VolumeAttachments that no
//     attach/detach controller has made, by their names and [VolumeAnnotation].
//   - As many volumes of a CSI driver are attached to a node as its CSINode allows.
type Controller struct {
	objects     objects.Client
	plugins     *volume.VolumePluginMgr
	translator  volume.Translator
	log         *slog.Logger
	detachAfter time.Duration

	nodes       *latest.Objects[*v1.Node]
	attachments *latest.Objects[*storagev1.VolumeAttachment]
	wishes      *wishes
	attached    *attachedTable
	listed      *listedTable
	tell        *teller
	queue       *work.Queue[key]
	telling     telling
	retelling   retelling
	silences    silences
	forced      counts // of Stats
	ran         atomic.Bool
}

// key is what is worked on: an object that has changed, or a volume.
type key struct {
	object volume.ObjectRef
	volume v1.UniqueVolumeName
}

// New returns a controller that does nothing until it is run.
func New(config Config) *Controller {
	c := &Controller{objects: config.Objects, plugins: config.Plugins, translator: config.Translator, log: config.Logger, detachAfter: config.DetachAfter,
		wishes: newWishes(), attached: newAttachedTable(), listed: newListedTable(), tell: newTeller(config.Events)}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	workers := config.Workers
	if workers <= 0 {
		workers = 16
	}
	c.nodes = latest.New(c.objects, kindNode, c.nodeChanged)
	c.attachments = latest.New(c.objects, pvapi.KindAttachment, func(types.NamespacedName, *storagev1.VolumeAttachment, *storagev1.VolumeAttachment, latest.Noticed) {})
	c.queue = work.NewQueue(work.Config[key]{Reconcile: c.reconcile, Workers: workers, Conflict: objects.ErrConflict})
	return c
}

// Run works until ctx ends and then returns nil, after all that it began has ended. Only one
// controller may run for a cluster at a time; the caller sees to it, by a lease that is given
// up only after Run has returned. Two that run by mistake undo each other's lists of attached
// volumes, with a pause that grows. The error is [ErrRunOnce], or says why the objects could
// not be listed; it can be tried again then, with a new controller.
func (c *Controller) Run(ctx context.Context) error {
	if c.ran.Swap(true) {
		return ErrRunOnce
	}
	for _, kind := range []string{pvapi.KindPod, pvapi.KindClaim, pvapi.KindVolume, kindNode, pvapi.KindAttachment, kindDriver, kindCSINode} {
		defer c.objects.WatchKind(kind, func(ref volume.ObjectRef) { c.queue.Enqueue(key{object: ref}) })()
	}
	if err := c.fill(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	c.queue.Start(ctx)
	<-ctx.Done()
	c.queue.Wait()
	return nil
}

// fill reads everything once, before anything is decided. Nodes and attachments are the
// API's own: a cache may show them as they were before the last controller's writes.
func (c *Controller) fill(ctx context.Context) error {
	if _, _, err := c.nodes.CatchUp(ctx); err != nil {
		return err
	}
	if _, _, err := c.attachments.CatchUp(ctx); err != nil {
		return err
	}
	for _, a := range c.attachments.All() {
		if err := c.takeAttachment(ctx, a); err != nil {
			return err
		}
	}
	pods, err := objects.List[*v1.Pod](ctx, c.objects, pvapi.KindPod, "")
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if err := c.takePod(ctx, pod); err != nil { // its node's volumes stay meanwhile
			c.queue.Enqueue(key{object: volume.NewObjectRef(pvapi.KindPod, pod.Namespace, pod.Name)})
		}
	}
	for _, node := range c.nodes.All() {
		c.queue.Enqueue(key{object: nodeRef(types.NodeName(node.Name))})
	}
	return nil
}

func nodeRef(name types.NodeName) volume.ObjectRef {
	return volume.NewObjectRef(kindNode, "", string(name))
}

func (c *Controller) enqueueVolumes(names []v1.UniqueVolumeName) {
	for _, name := range names {
		c.queue.Enqueue(key{volume: name})
	}
}

func (c *Controller) reconcile(ctx context.Context, k key) work.Result {
	after, err := c.sync(ctx, k)
	if err == nil {
		return work.Result{After: after}
	}
	if ctx.Err() == nil {
		level := slog.LevelWarn
		if errors.Is(err, objects.ErrConflict) { // the usual way to learn that the cache was behind
			level = slog.LevelDebug
		}
		c.log.Log(ctx, level, "to be tried again", "object", k.String(), "error", err)
	}
	return work.Result{Reason: err}
}

// String names the object, or the volume.
func (k key) String() string {
	if k.volume != "" {
		return "volume " + string(k.volume)
	}
	return k.object.String()
}

// sync does the next steps for one key, and says when to look again though nothing changes;
// 0: never.
func (c *Controller) sync(ctx context.Context, k key) (time.Duration, error) {
	if k.volume != "" {
		return c.syncVolume(ctx, k.volume)
	}
	switch k.object.Kind {
	case pvapi.KindPod:
		return 0, c.syncPod(ctx, k.object)
	case pvapi.KindAttachment:
		return 0, c.syncAttachment(ctx, k.object.NamespacedName)
	case kindNode:
		return c.syncNode(ctx, types.NodeName(k.object.Name))
	case kindCSINode:
		c.enqueueVolumes(c.wishes.volumesOn(types.NodeName(k.object.Name)))
		c.enqueuePods(k.object) // whose volumes it may translate now
		return 0, nil
	}
	if k.object.Kind == pvapi.KindVolume {
		for _, name := range c.attached.foreignOf(k.object.Name) {
			c.queue.Enqueue(key{object: volume.NewObjectRef(pvapi.KindAttachment, "", name)})
		}
	}
	c.enqueuePods(k.object) // a claim's, a volume's or a driver's
	return 0, nil
}
