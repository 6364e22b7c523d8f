package persistentvolume

import (
	"context"
	"errors"
	"log/slog"
	"maps"
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
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
)

const kindClass = "StorageClass"

// ErrRunOnce says that a [Controller] was run a second time.
var ErrRunOnce = errors.New("a controller can be run only once")

// ControllerConfig is what a [Controller] is made of.
type ControllerConfig struct {
	// Objects are the API's. They may answer from a cache that is behind
	// ([objects.Cached]): writes carry the resourceVersion that they are based
	// on, and what cannot be undone is decided by what the API itself says.
	Objects objects.Client
	// Plugins make, empty and delete storage; their host needs the role
	// [volume.ReleaseVerifier] for the latter two, such as [release.Verifier] over
	// the same Objects. Nil: nothing is provisioned or reclaimed.
	Plugins *volume.VolumePluginMgr
	// Events takes what the controller has to say about claims and volumes; nil
	// drops it.
	Events EventRecorder
	// Explained is called after what [Controller.Explain] says of a claim has
	// changed, from several goroutines; it must not block. Nil: nobody is told.
	Explained func(types.NamespacedName)
	// Logger takes failed attempts, which are tried again; nil drops them.
	Logger *slog.Logger
	// PodsComplete is closed once all pods that use claims are among the Objects.
	// Until then the controller binds, makes volumes and keeps phases, but lets
	// no claim and no volume go that is being deleted, deletes no claim whose pod
	// is missing, and reclaims nothing: the pod that uses it may not have been
	// announced yet. A program that knows some pods alone never closes it. Nil
	// says that they are complete from the start, as those of an API are.
	PodsComplete <-chan struct{}
	// Provisioners has the controller work beside one that binds claims, such as
	// kube-controller-manager's. It then does what an external provisioner does,
	// and nothing else: it makes volumes for claims that the other one has given to
	// one of these provisioners, and deletes those of them that are Released and
	// whose policy is Delete. The keys are what StorageClasses call a provisioner,
	// the values the names of the plugins that do it; keys that begin with
	// "kubernetes.io/" are refused, since the other controller takes those for its
	// own ([ControllerConfig.Validate] says so before anything is done). Nil: there is
	// no other controller, and this one does everything.
	Provisioners map[string]string
	// NodeName is the only node there is, where there is but one: claims are bound
	// to no volume that cannot be reached from it, though they do not wait for a
	// pod. Empty: there may be others.
	NodeName string
	// Only says which claims, volumes and pods the controller works on, for a
	// program that is to do one thing and nothing besides; it must not block. All
	// others stay as they are, and are only known. Nil: all.
	Only func(volume.ObjectRef) bool
	// TrustedClaims says that nobody but controllers writes the finalizers and
	// annotations of claims. Then storage that was begun for a claim is finished as
	// it was begun though its class has been replaced or deleted since; else a user
	// could have made a claim that says so, and the claim keeps
	// [ProvisioningFinalizer] and says what to do.
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

// Controller is Kubernetes' PersistentVolume controller: it binds claims to
// volumes, has volumes made for claims that find none, reclaims those that were
// left, keeps those in use from being deleted, and keeps the phases of both. The
// claims of ephemeral volumes it makes and deletes with their pods. Behaviour,
// annotations and the reasons of events are those of v1.37, with the differences
// that [index.Index.Match] names.
//
// It works on what has changed and polls nothing: a claim that waits is looked
// at again when a volume comes that it could have, or its class. A binding is
// decided by one write, the volume's claimRef, which the API refuses if anybody
// else has changed the volume; whatever step a crash cuts off, the next start
// completes it. Four writes bind a pair: the volume's claimRef, the claim's
// volumeName, and the phases of both, since the API takes a status by itself; the
// finalizers and annotations go with the first two. A claim that gets its default
// class late, and a volume or claim that waits for its pair, takes one or two
// more. Storage is made under a name that is known before, and deleted before the
// volume that says where it is ([ProvisioningFinalizer]).
type Controller struct {
	objects objects.Client
	plugins *volume.VolumePluginMgr
	log     *slog.Logger
	events  eventLog
	index   *index.Index
	claims  latest[*v1.PersistentVolumeClaim]
	volumes latest[*v1.PersistentVolume]
	classes latest[*storagev1.StorageClass]
	pods    latest[*v1.Pod]
	users   claimUsers
	waiting *index.Waiting
	queue   *work.Queue
	// operations make, empty and delete storage.
	operations *operation.Executor
	pairs      pairs
	placing    placing
	onePod     onePod
	unbound    reasons
	// provisioners is ControllerConfig.Provisioners.
	provisioners map[string]string
	// nodeName is ControllerConfig.NodeName.
	nodeName string
	// trustedClaims is ControllerConfig.TrustedClaims.
	trustedClaims bool
	// unusedCondition is ControllerConfig.UnusedCondition.
	unusedCondition bool
	// node is how that was when the queue worked on it last; nil before.
	node *onlyNode
	// only is ControllerConfig.Only.
	only func(volume.ObjectRef) bool
	// complete is ControllerConfig.PodsComplete.
	complete  <-chan struct{}
	lookAtAll func() // once
	activity  *work.Activity
	ran       atomic.Bool
	synced    chan struct{} // closed when all objects were seen once
	ended     chan struct{} // closed when Run has returned
}

// NewController returns a controller that does nothing until it is run.
func NewController(config ControllerConfig) *Controller {
	c := &Controller{
		objects: config.Objects, plugins: config.Plugins, log: config.Logger, events: eventLog{sink: config.Events, told: make(map[types.UID]string)},
		index: index.New(), waiting: index.NewWaiting(), nodeName: config.NodeName, provisioners: maps.Clone(config.Provisioners), trustedClaims: config.TrustedClaims, unusedCondition: config.UnusedCondition, only: config.Only, complete: config.PodsComplete, activity: new(work.Activity),
		synced: make(chan struct{}), ended: make(chan struct{}), unbound: reasons{changed: config.Explained},
	}
	c.lookAtAll = sync.OnceFunc(c.lookAtClaimsAndVolumes)
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	workers := config.Workers
	if workers <= 0 {
		workers = 16
	}
	c.queue = work.NewQueue(workers, c.activity, objects.ErrConflict, c.work)
	c.pairs.queue = c.queue
	c.operations = operation.NewExecutor(operation.Config{Again: c.queue.Add, Watch: c.objects.Watch, Activity: c.activity, Slow: c.warnOfSlow})
	c.claims = newLatest(c.objects, pvapi.KindClaim, c.claimChanged)
	c.volumes = newLatest(c.objects, pvapi.KindVolume, c.volumeChanged)
	c.volumes.same = c.index.Swap
	c.pods = newLatest(c.objects, pvapi.KindPod, c.podChanged)
	c.users.pods = make(map[types.NamespacedName]map[string]*v1.Pod)
	c.classes = newLatest(c.objects, kindClass, c.classChanged)
	return c
}

func (c *Controller) warnOfSlow(t operation.Task) {
	c.log.Warn("a plugin does not answer; it is waited for", "object", t.About.String(), "volume", t.Volume, "for", operation.Patience)
}

// Run works until ctx ends and then returns nil, after all that it began has
// ended. Only one controller may run for a cluster at a time, which its caller sees
// to, by a lease or a lock that was given up only after Run has returned: of two,
// one may still empty a volume that the other has given to the next claim. The
// error is [ErrRunOnce], a *[volume.InvalidSpecError] if [ControllerConfig].Provisioners
// cannot be, or says why the objects could not be listed; it can be
// tried again then, with a new controller.
func (c *Controller) Run(ctx context.Context) error {
	if c.ran.Swap(true) {
		return ErrRunOnce
	}
	defer close(c.ended)
	if err := checkProvisioners(c.provisioners, c.plugins); err != nil {
		return err
	}
	for _, kind := range []string{kindClass, pvapi.KindPod} {
		defer c.objects.WatchKind(kind, c.queue.Add)()
	}
	for _, kind := range []string{pvapi.KindVolume, pvapi.KindClaim} {
		defer c.objects.WatchKind(kind, c.queue.Hear)()
	}
	defer c.watchNode()()
	if err := c.fill(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	close(c.synced)
	c.operations.Start(ctx)
	c.queue.Start(ctx)
	select {
	case <-c.complete:
		c.lookAtAll()
	case <-ctx.Done():
	}
	<-ctx.Done()
	c.queue.Wait()
	c.operations.Wait()
	return nil
}

// fill reads everything once, volumes before claims, so that none is given away
// whose claim has not been seen. It is looked at in the other order: what a
// claim takes at once need not be shown as available first.
func (c *Controller) fill(ctx context.Context) error {
	if _, err := c.classes.fill(ctx); err != nil {
		return err
	}
	pods, err := c.pods.fill(ctx)
	if err != nil {
		return err
	}
	volumes, err := c.volumes.fill(ctx)
	if err != nil {
		return err
	}
	claims, err := c.claims.fill(ctx)
	if err != nil {
		return err
	}
	for _, claim := range claims {
		c.queue.Add(pvapi.ClaimRef(pvapi.NameOf(claim)))
	}
	for _, pv := range volumes {
		c.queue.Add(pvapi.VolumeRef(pv.Name))
	}
	for _, pod := range pods {
		c.queue.Add(volume.NewObjectRef(pvapi.KindPod, pod.Namespace, pod.Name))
	}
	return nil
}

// podsComplete reports whether what no known pod uses is not used.
func (c *Controller) podsComplete() bool {
	if c.complete == nil {
		return true
	}
	select {
	case <-c.complete:
		return true
	default:
		return false
	}
}

// lookAtClaimsAndVolumes does what had to wait until the pods were complete.
func (c *Controller) lookAtClaimsAndVolumes() {
	for _, pv := range c.volumes.all() {
		c.queue.Add(pvapi.VolumeRef(pv.Name))
	}
	for _, claim := range c.claims.all() {
		c.queue.Add(pvapi.ClaimRef(pvapi.NameOf(claim)))
	}
}

// work is what the queue does for one object.
func (c *Controller) work(ctx context.Context, ref volume.ObjectRef, look bool) error {
	err := c.sync(ctx, ref, look)
	if err != nil && ctx.Err() == nil {
		level := slog.LevelWarn
		if errors.Is(err, objects.ErrConflict) { // the usual way to learn that the cache was behind
			level = slog.LevelDebug
		}
		c.log.Log(ctx, level, "to be tried again", "object", ref.String(), "error", err)
	}
	return err
}

// sync does what there is to do for one object. Without look it learns of a
// claim or volume only; if that is news, it is looked at later.
func (c *Controller) sync(ctx context.Context, ref volume.ObjectRef, look bool) (err error) {
	if !c.minds(ref) {
		return c.learn(ctx, ref)
	}
	exists := false
	switch ref.Kind {
	case pvapi.KindClaim:
		if !look {
			_, exists, err = c.claims.get(ctx, ref.NamespacedName)
		}
		if err == nil && !exists && c.isBeside() {
			err = c.syncClaimBeside(ctx, ref.NamespacedName)
		} else if err == nil && !exists {
			c.unbound.doubt(ref.NamespacedName)
			err = c.syncClaim(ctx, ref.NamespacedName)
			c.unbound.settle(ref.NamespacedName, err)
		}
	case pvapi.KindVolume:
		unlock, free := c.pairs.try(ref.Name, look)
		if !free {
			return nil
		}
		defer unlock()
		if !look {
			_, exists, err = c.volumes.get(ctx, ref.NamespacedName)
		}
		if err == nil && !exists && c.isBeside() {
			err = c.syncVolumeBeside(ctx, ref.Name)
		} else if err == nil && !exists {
			err = c.syncVolume(ctx, ref.Name)
		}
	case kindClass:
		_, _, err = c.classes.get(ctx, ref.NamespacedName)
	case pvapi.KindPod:
		if c.isBeside() {
			return c.learn(ctx, ref)
		}
		err = c.syncPod(ctx, ref.NamespacedName)
	case kindNode:
		err = c.syncNode(ctx)
	}
	return err
}

// minds reports whether an object is one to work on.
func (c *Controller) minds(ref volume.ObjectRef) bool {
	return c.only == nil || ref.Kind == kindClass || ref.Kind == kindNode || c.only(ref)
}

// learn takes note of an object that is not to be worked on.
func (c *Controller) learn(ctx context.Context, ref volume.ObjectRef) (err error) {
	switch ref.Kind {
	case pvapi.KindClaim:
		_, _, err = c.claims.get(ctx, ref.NamespacedName)
	case pvapi.KindVolume:
		_, _, err = c.volumes.get(ctx, ref.NamespacedName)
	case pvapi.KindPod:
		_, _, err = c.pods.get(ctx, ref.NamespacedName)
	}
	return err
}

// claimChanged has the claim looked at, the volumes that mean it, and the one that
// it names no more. That holds for what the controller has read or written itself,
// too: it may be gone again by the time that it is noted. Only what is written for
// a pair is not looked at again for that.
func (c *Controller) claimChanged(name types.NamespacedName, prior, now *v1.PersistentVolumeClaim, how noticed) {
	pair := ""
	switch how {
	case listed:
		c.index.PutClaim(now)
		c.expect(now)
		return
	case written:
		c.index.PutClaim(now)
		pair = now.Spec.VolumeName
	case seen:
		c.tellOfShrinking(prior, now)
		c.index.PutClaim(now)
		c.expect(now)
		c.queue.Add(pvapi.ClaimRef(name))
	case gone:
		c.index.DeleteClaim(name)
		c.events.settled(prior.UID)
		c.events.settled(attributesOf(prior))
		c.events.settled(slownessOf(prior))
		c.operations.Forget(provisionKey(prior))
		c.onePod.drop(name, nil)
		for _, pod := range c.users.of(name) { // it may be one to make again
			c.queue.Add(volume.NewObjectRef(pvapi.KindPod, pod.Namespace, pod.Name))
		}
	}
	if prior != nil && prior.Spec.VolumeName != "" && (how == gone || now.Spec.VolumeName != prior.Spec.VolumeName) {
		c.queue.Add(pvapi.VolumeRef(prior.Spec.VolumeName)) // which it may have kept from others
	}
	for _, pv := range c.index.Meaning(name, pair) {
		c.queue.Add(pvapi.VolumeRef(pv))
	}
}

// expect has a claim wait that will be looked at, so that no volume that it could
// have is shown as available first.
func (c *Controller) expect(claim *v1.PersistentVolumeClaim) {
	if _, bound := claim.Annotations[pvapi.AnnBindCompleted]; bound || claim.DeletionTimestamp != nil || claim.Spec.VolumeName != "" || !c.minds(pvapi.ClaimRef(pvapi.NameOf(claim))) {
		return
	}
	name := pvapi.ClaimClass(claim, "")
	if pvapi.WantsDefaultClass(claim) {
		name = DefaultClass(c.classes.all())
	}
	class, _ := c.classes.last(types.NamespacedName{Name: name})
	wanted := wantedNow(claim, class)
	wanted.DefaultClass = name
	c.waiting.Add(wanted)
}

// volumeChanged has the volume looked at, and the claims that it means or that
// name it.
func (c *Controller) volumeChanged(name types.NamespacedName, prior, now *v1.PersistentVolume, how noticed) {
	var pair types.NamespacedName
	switch how {
	case listed:
		c.index.Put(now)
		return
	case written:
		pair, _ = pvapi.ClaimRefOf(now)
	}
	claims := c.index.ClaimsOf(name.Name, pair) // before and, below, after
	if how == gone {
		c.index.Delete(name.Name)
		c.operations.Forget(releaseKey(prior))
		c.events.settled(prior.UID)
		c.events.settled(slownessOf(prior))
	} else {
		c.index.Put(now)
		if prior != nil && !isSameRelease(prior, now) {
			c.operations.Forget(releaseKey(prior))
			c.events.settled(prior.UID)
			c.events.settled(slownessOf(prior))
		}
	}
	for _, claim := range claims {
		c.queue.Add(pvapi.ClaimRef(claim))
	}
	if how != seen {
		return
	}
	if claim, ok := pvapi.ClaimRefOf(now); ok {
		c.queue.Add(pvapi.ClaimRef(claim))
	}
	c.queue.Add(pvapi.VolumeRef(name.Name))
}

// classChanged has the claims looked at that wait for the class, or for any to
// be the default.
func (c *Controller) classChanged(name types.NamespacedName, _, _ *storagev1.StorageClass, _ noticed) {
	for _, claim := range append(c.waiting.OfClass(name.Name), c.waiting.OfClass("")...) {
		if waits, known := c.claims.last(claim); known {
			c.operations.Hurry(provisionKey(waits))
		}
		c.queue.Add(pvapi.ClaimRef(claim))
	}
}

// offer has the claim looked at that a volume is for, if it is free, and reports
// whether there is one.
func (c *Controller) offer(volumeName string) bool {
	pv, free := c.index.Free(volumeName)
	if !free {
		return false
	}
	claim, ok := c.waiting.Offer(pv)
	if !ok {
		claim, ok = c.waiting.OfferWoken(pv)
	}
	if ok {
		c.queue.Add(pvapi.ClaimRef(claim))
	}
	return ok
}

// giveBack offers a volume that was kept for a claim to others, or has it looked at,
// unless it was taken.
func (c *Controller) giveBack(volumeName string, from types.NamespacedName) {
	pv, exists := c.index.Volume(volumeName)
	if !exists || pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID != "" {
		return
	}
	c.remindClaimsOf(volumeName, from)
	if pv.Spec.ClaimRef == nil && !c.offer(volumeName) {
		c.queue.Add(pvapi.VolumeRef(volumeName))
	}
}

// remindClaimsOf has the claims but one looked at that name a volume, and the one
// that it means: they may have it now.
func (c *Controller) remindClaimsOf(volumeName string, but types.NamespacedName) {
	for _, claim := range c.index.ClaimsOf(volumeName, but) {
		c.queue.Remind(pvapi.ClaimRef(claim))
	}
}
