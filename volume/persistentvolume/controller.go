package persistentvolume

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/eventlog"
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
	"github.com/podvol/podvol/volume/persistentvolume/internal/reservation"
	"github.com/podvol/podvol/volume/persistentvolume/internal/resizer"
)

// ErrRunOnce says that a [Controller] was run a second time.
var ErrRunOnce = errors.New("a controller can be run only once")

// ControllerConfig is what a [Controller] is made of.
type ControllerConfig struct {
	// Objects are the API's. They may answer from a cache that is behind
	// ([objects.Cached]): writes carry the resourceVersion that they are based on,
	// and the API itself is asked before a step that cannot be undone.
	Objects objects.Client
	// Plugins make, empty and delete storage; their host needs the role
	// [volume.ReleaseVerifier] for the latter two, such as [release.Verifier] over
	// the same Objects. Nil: nothing is provisioned or reclaimed.
	Plugins *volume.VolumePluginMgr
	// Events takes what the controller has to say about claims and volumes; nil
	// drops it.
	Events EventRecorder
	// Explained is called after what [Controller.Explain] or [Controller.ExplainChanges]
	// says of a claim has changed, from several goroutines; it must not block. Nil: it is not
	// called.
	Explained func(types.NamespacedName)
	// Tracer records a span for each operation on storage, such as "provision"; with the calls of a
	// CSI driver as its children. Nil: none.
	Tracer volume.Tracer
	// Logger takes failed attempts, which are tried again; nil drops them.
	Logger *slog.Logger
	// PodsComplete is closed once all pods that use claims are among the Objects.
	// Until then the controller binds, makes volumes and keeps phases. But it lets
	// no deleted claim or volume go, deletes no claim whose pod is missing, and
	// reclaims nothing: a pod that uses it may not be announced yet. A program that
	// knows only some pods never closes it. Nil: they are complete from the start,
	// as an API's are.
	PodsComplete <-chan struct{}
	// Provisioners makes the controller an external provisioner, beside a controller that
	// binds claims, such as kube-controller-manager's. Then it only makes volumes for
	// claims that the other one has given to one of these provisioners, and deletes their
	// volumes when they are Released with policy Delete. Keys are provisioners' names in
	// StorageClasses, values the names of their plugins. Keys that begin with
	// "kubernetes.io/" are refused, since the other controller takes those for its own
	// ([ControllerConfig.Validate]). Nil: there is no other controller, and this one does
	// everything.
	Provisioners map[string]string
	// MigratedTo returns the CSI driver that makes and deletes the volumes of an in-tree
	// plugin, such as kubernetes.io/gce-pd, in that one's place (csitranslation.Translator);
	// "" for others. Claims are given to that driver's provisioner, and volumes say so
	// (pv.kubernetes.io/migrated-to). Nil: that of the Plugins ([volume.MigratedTo]).
	MigratedTo func(plugin string) string
	// NodeName is the only node there is, where there is but one: claims are bound
	// to no volume that cannot be reached from it, though they do not wait for a
	// pod. Empty: there may be others.
	NodeName string
	// Only says which claims, volumes and pods the controller works on, for a
	// program that is to do one thing and nothing besides; it must not block. All
	// others stay as they are, and are only known. Nil: all.
	Only func(volume.ObjectRef) bool
	// TrustedClaims says that only controllers write the finalizers and annotations
	// of claims. Then storage that was begun for a claim is finished as it was
	// begun, even if its class has been replaced or deleted since. Else a user could
	// forge such a claim: it keeps [ProvisioningFinalizer] and says what to do.
	TrustedClaims bool
	// UnusedCondition keeps the condition Unused of bound claims, as Kubernetes does
	// by default from 1.37 on (PersistentVolumeClaimUnusedSinceTime): True with the
	// reason NoPodsUsingPVC while no pod names the claim that has not ended, else
	// False with the reason PodUsingPVC. Its lastTransitionTime is when this controller
	// saw that change. It costs a write for each change; none is made beside another
	// controller.
	UnusedCondition bool
	// Workers is how many claims and volumes are worked on at the same time; 0
	// means 16.
	Workers int
}

// Controller is Kubernetes' PersistentVolume controller. It binds claims to volumes, has
// volumes made for claims that find none, reclaims released ones, protects those in use,
// keeps the phases of both, and makes and deletes the claims of ephemeral volumes with
// their pods.
//
//   - Behaviour, annotations and reasons of events are v1.37's, with the differences that
//     [index.Index.Match] names.
//   - It works on changes and polls nothing: a claim that waits is enqueued again when a
//     volume comes that it could have, or its class.
//   - One write decides a binding: the volume's claimRef, which the API refuses if another
//     writer has changed the volume. The next start completes whatever a crash cuts off.
//   - Four writes bind a pair: the volume's claimRef, the claim's volumeName, and the
//     phases of both, since the API takes a status by itself. A claim that gets its
//     default class late, and a volume or claim that waits for its pair, takes one or two
//     more.
//   - Storage is made under a name that is known before, and deleted before the volume
//     that says where it is ([ProvisioningFinalizer]).
type Controller struct {
	// role is a binder, or an externalProvisioner beside another controller.
	role    role
	placer  *placer
	resizer *resizer.Resizer // nil beside another controller
	cluster *cluster
	plugins *volume.VolumePluginMgr
	log     *slog.Logger
	queue   *work.Queue[volume.ObjectRef]
	// activity is what of queue and operations is not idle.
	activity work.Activity
	// operations make, empty and delete storage.
	operations *operation.Executor
	// table says who has a volume or a claim now.
	table   *reservation.Table
	waiting *index.Waiting
	unbound *reasons
	// provisioners is ControllerConfig.Provisioners.
	provisioners map[string]string
	// node is how the only node was when the queue worked on it last; nil before.
	node       *onlyNode
	enqueueAll func() // once
	ran        atomic.Bool
	synced     chan struct{} // closed when all objects were seen once
	ended      chan struct{} // closed when Run has returned
}

// role is what a controller does: everything, or what an external provisioner does.
type role interface {
	syncClaim(ctx context.Context, name types.NamespacedName) error
	// syncVolume does the next steps for one volume, which no other call writes meanwhile.
	syncVolume(ctx context.Context, name string) error
	syncPod(ctx context.Context, name types.NamespacedName) error
	duties
}

// duties are what provisioner and reclaimer leave to the role.
type duties interface {
	makerDuties
	deleterDuties
}

// storageHolder says what keeps a volume until its storage is gone.
type storageHolder interface {
	// storageFinalizers are the finalizers that are removed once the storage is gone.
	storageFinalizers() []string
}

// makerDuties are what the provisioner leaves to the role.
type makerDuties interface {
	storageHolder
	// pluginFor returns the name of the plugin that is meant by a provisioner's; "" for
	// another process's.
	pluginFor(provisioner string) string
	// isExternal reports whether another process provisions volumes under that name.
	isExternal(provisioner string) bool
	// begin returns the claim as it is before its storage is made, but for what it is made
	// with; noted says that an earlier controller has left that out, and it stays so.
	begin(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (next *v1.PersistentVolumeClaim, noted bool)
	// tellBegun tells of storage that is made for the first time.
	tellBegun(claim *v1.PersistentVolumeClaim)
	// complete adds what a volume that was made carries, in place.
	complete(pv *v1.PersistentVolume)
}

// deleterDuties are what the reclaimer leaves to the role.
type deleterDuties interface {
	storageHolder
	// deleterOf returns the plugin that is to delete a volume's storage, and its
	// spec.
	deleterOf(pv *v1.PersistentVolume) (volume.DeletableVolumePlugin, *volume.Spec, error)
}

// NewController returns a controller that does nothing until it is run.
func NewController(config ControllerConfig) *Controller {
	c := &Controller{
		plugins: config.Plugins, log: config.Logger, provisioners: maps.Clone(config.Provisioners),
		waiting: index.NewWaiting(), unbound: &reasons{changed: config.Explained},
		synced: make(chan struct{}), ended: make(chan struct{}),
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	workers := config.Workers
	if workers <= 0 {
		workers = 16
	}
	c.queue = work.NewQueue(work.Config[volume.ObjectRef]{Reconcile: c.reconcile, Refresh: c.refresh, Workers: workers, Activity: &c.activity, Conflict: objects.ErrConflict})
	all := index.New()
	c.table = reservation.New(reservation.Config{Index: all, Waiting: c.waiting, Queue: c.queue})
	c.operations = operation.NewExecutor(operation.Config{Again: c.queue.Enqueue, Reserve: c.reserveStorage, Watch: config.Objects.Watch, Activity: &c.activity, Slow: c.warnOfSlow, Tracer: config.Tracer})
	events := eventlog.New(config.Events)
	changes := &changes{copies: make(map[types.NamespacedName]map[types.NamespacedName]*v1.PersistentVolumeClaim), index: all, waiting: c.waiting, table: c.table, operations: c.operations, events: events, queue: c.queue}
	c.cluster = newCluster(config, changes)
	c.enqueueAll = sync.OnceFunc(c.cluster.enqueueAll)
	c.takeRole(config, events)
	changes.resizer = c.resizer
	return c
}

// takeRole makes the controller a binder, or an external provisioner, of its parts. Each part
// has named fields for what it uses.
func (c *Controller) takeRole(config ControllerConfig, events *eventlog.Log) {
	known := c.cluster
	w := &writer{objects: objects.Sharing(config.Objects), claims: known.claims, volumes: known.volumes, queue: c.queue}
	pending := &pendingClaims{unbound: c.unbound, events: events, status: othersStatus{}}
	p := &provisioner{
		cluster: known, writer: w, pending: pending, plugins: config.Plugins, table: c.table, waiting: c.waiting, operations: c.operations,
		events: events, queue: c.queue, trustedClaims: config.TrustedClaims, driverOf: config.driverOf,
	}
	r := &reclaimer{cluster: known, writer: w, status: othersStatus{}, plugins: config.Plugins, operations: c.operations, events: events, driverOf: config.driverOf}
	c.placer = &placer{cluster: known, writer: w, table: c.table, operations: c.operations}
	if c.provisioners != nil {
		c.role = &externalProvisioner{
			cluster: known, writer: w, plugins: config.Plugins, waiting: c.waiting, operations: c.operations, events: events,
			provisioners: c.provisioners, provisioner: p, reclaimer: r,
		}
	} else {
		status := &ownStatus{cluster: known, writer: w}
		c.resizer = &resizer.Resizer{Objects: config.Objects, ClassOf: known.classOf, Writer: w, Plugins: config.Plugins, Operations: c.operations, Events: events, Changed: config.Explained}
		pending.status, r.status = status, status
		c.role = &binder{
			cluster: known, writer: w, status: status, pending: pending, plugins: config.Plugins, table: c.table, waiting: c.waiting,
			operations: c.operations, events: events, unbound: c.unbound, driverOf: config.driverOf, provisioner: p, reclaimer: r,
			resizer:         c.resizer,
			unusedCondition: config.UnusedCondition,
		}
	}
	p.duties, r.duties = c.role, c.role
	c.placer.isExternal, c.placer.fills = c.role.isExternal, p.fills
}

// Run works until ctx ends and then returns nil, after all that it began has
// ended. Only one controller may run for a cluster at a time: of two, one may
// still empty a volume that the other has given to the next claim. The caller
// sees to it, by a lease or a lock that is given up only after Run has returned.
// The error is [ErrRunOnce], a *[volume.InvalidSpecError] if
// [ControllerConfig].Provisioners cannot be, or says why the objects could not be
// listed; it can be tried again then, with a new controller.
func (c *Controller) Run(ctx context.Context) error {
	if c.ran.Swap(true) {
		return ErrRunOnce
	}
	defer close(c.ended)
	if err := checkProvisioners(c.provisioners, c.plugins); err != nil {
		return err
	}
	for _, kind := range []string{kindClass, pvapi.KindPod} {
		defer c.cluster.objects.WatchKind(kind, c.queue.Enqueue)()
	}
	for _, kind := range []string{pvapi.KindVolume, pvapi.KindClaim} {
		defer c.cluster.objects.WatchKind(kind, c.queue.EnqueueIfChanged)()
	}
	defer c.watchNode()()
	if err := c.cluster.fill(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	close(c.synced)
	c.operations.Start(ctx)
	c.queue.Start(ctx)
	select {
	case <-c.cluster.podsKnown:
		c.enqueueAll()
	case <-ctx.Done():
	}
	<-ctx.Done()
	c.queue.Wait()
	c.operations.Wait()
	return nil
}

// reconcile and refresh are the queue's.
func (c *Controller) reconcile(ctx context.Context, ref volume.ObjectRef) work.Result {
	return c.result(ctx, ref, c.sync(ctx, ref))
}

func (c *Controller) refresh(ctx context.Context, ref volume.ObjectRef) work.Result {
	return c.result(ctx, ref, c.read(ctx, ref))
}

func (c *Controller) result(ctx context.Context, ref volume.ObjectRef, err error) work.Result {
	if err != nil && ctx.Err() == nil {
		level := slog.LevelWarn
		if errors.Is(err, objects.ErrConflict) { // the usual way to learn that the cache was behind
			level = slog.LevelDebug
		}
		c.log.Log(ctx, level, "to be tried again", "object", ref.String(), "error", err)
	}
	return work.Result{Reason: err}
}

// sync does the next steps for one object.
func (c *Controller) sync(ctx context.Context, ref volume.ObjectRef) (err error) {
	if !c.cluster.isSelected(ref) {
		return c.cluster.learn(ctx, ref)
	}
	switch ref.Kind {
	case pvapi.KindClaim:
		return c.role.syncClaim(ctx, ref.NamespacedName)
	case pvapi.KindVolume:
		turn, free := c.table.TryWriting(ref.Name)
		if !free {
			return nil
		}
		defer turn.Forget()
		return c.role.syncVolume(ctx, ref.Name)
	case kindClass:
		_, _, err = c.cluster.classes.Get(ctx, ref.NamespacedName)
	case pvapi.KindPod:
		err = c.role.syncPod(ctx, ref.NamespacedName)
	case kindNode:
		err = c.syncNode(ctx)
	}
	return err
}

// read reads a claim or a volume, which enqueues it if it has changed ([changes]). One that
// is gone is synced. Only these two kinds are refreshed.
func (c *Controller) read(ctx context.Context, ref volume.ObjectRef) (err error) {
	if !c.cluster.isSelected(ref) {
		return c.cluster.learn(ctx, ref)
	}
	var exists bool
	switch ref.Kind {
	case pvapi.KindClaim:
		if _, exists, err = c.cluster.claims.Get(ctx, ref.NamespacedName); err != nil || exists {
			return err
		}
		return c.role.syncClaim(ctx, ref.NamespacedName)
	case pvapi.KindVolume:
		turn, free := c.table.TryReading(ref.Name)
		if !free {
			return nil
		}
		defer turn.Forget()
		if _, exists, err = c.cluster.volumes.Get(ctx, ref.NamespacedName); err != nil || exists {
			return err
		}
		return c.role.syncVolume(ctx, ref.Name)
	}
	return c.sync(ctx, ref)
}

// reserveStorage keeps a volume for an operation on its storage.
func (c *Controller) reserveStorage(t operation.Task) (forget func(), ok bool) {
	e, ok := c.table.ReserveStorage(t.Volume, t.Removes, t.About)
	if !ok {
		return nil, false
	}
	return e.Forget, true
}

func (c *Controller) warnOfSlow(t operation.Task) {
	c.log.Warn("a plugin does not answer; it is waited for", "object", t.About.String(), "volume", t.Volume, "for", operation.Patience)
}

// watchNode enqueues the only node when it has changed.
func (c *Controller) watchNode() (stop func()) {
	if c.cluster.nodeName == "" {
		return func() {}
	}
	return c.cluster.objects.Watch(volume.NewObjectRef(kindNode, "", c.cluster.nodeName), c.queue.Enqueue)
}

// syncNode enqueues the claims that have no volume when the only node has come or
// gone, or has other labels. A node changes every few seconds otherwise, to say
// that it lives.
func (c *Controller) syncNode(ctx context.Context) error {
	node, err := objects.Get[*v1.Node](ctx, c.cluster.objects, volume.NewObjectRef(kindNode, "", c.cluster.nodeName))
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		return err
	}
	now := &onlyNode{exists: err == nil}
	if now.exists {
		now.uid, now.labels = node.UID, node.Labels
	}
	if now.equal(c.node) {
		return nil
	}
	c.node = now
	for _, claim := range c.cluster.claims.All() {
		if _, bound := claim.Annotations[pvapi.AnnBindCompleted]; !bound || isProvisioning(claim) {
			c.queue.Enqueue(pvapi.ClaimRef(pvapi.NameOf(claim)))
		}
	}
	return nil
}

// onlyNode is what it depends on of the only node which volumes it can reach.
type onlyNode struct {
	exists bool
	uid    types.UID
	labels map[string]string
}

func (n *onlyNode) equal(other *onlyNode) bool {
	return other != nil && n.exists == other.exists && n.uid == other.uid && maps.Equal(n.labels, other.labels)
}

// ErrNotRunning says that a [Controller] does not run any more.
var ErrNotRunning = errors.New("the controller does not run any more")

// Idle returns once the controller has done all that there is to do: it has seen
// whatever was stored before the call, nothing is queued and no operation runs.
// An object that waits for its next try after a failure, or for a change, counts
// as done. So does what a cache ([objects.Cached]) does not show yet, if it was
// deleted meanwhile. It waits for the controller to be run, and may be called
// often, at the cost of a list of everything. The error is the end of ctx,
// [ErrNotRunning], or a failed look-up.
func (c *Controller) Idle(ctx context.Context) error {
	select {
	case <-c.synced:
	case <-c.ended:
		return ErrNotRunning
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if c.cluster.podsKnown != nil && c.cluster.podsComplete() {
		c.enqueueAll()
	}
	var missing []volume.ObjectRef
	for {
		news, gone, err := c.cluster.catchUp(ctx)
		if err != nil {
			return err
		}
		select {
		case <-c.activity.Idle():
			if c.queue.Ended() {
				return ErrNotRunning // it has given up what it had to do
			}
		case <-c.ended:
			return ErrNotRunning
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		// What a cache still has is enqueued when it has it no more.
		if !news && slices.Equal(gone, missing) {
			return nil
		}
		missing = gone
	}
}
