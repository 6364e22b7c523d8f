package persistentvolume

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
	"github.com/podvol/podvol/volume/persistentvolume/internal/reservation"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
)

// cluster is what a controller knows of a cluster, and how it writes to it.
type cluster struct {
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
	queue   *work.Queue[volume.ObjectRef]
	// activity is what of queue and operations is not idle.
	activity *work.Activity
	// operations make, empty and delete storage.
	operations *operation.Executor
	// table says who has a volume or a claim now.
	table   *reservation.Table
	unbound reasons
	// duties come from the controller's role.
	duties
	// nodeName is ControllerConfig.NodeName.
	nodeName string
	// only is ControllerConfig.Only.
	only func(volume.ObjectRef) bool
	// podsKnown is ControllerConfig.PodsComplete.
	podsKnown <-chan struct{}
}

// newCluster returns a cluster without queue, operations and duties.
func newCluster(config ControllerConfig) *cluster {
	c := &cluster{
		objects: config.Objects, plugins: config.Plugins, log: config.Logger, events: eventLog{sink: config.Events, told: make(map[types.UID]string)},
		index: index.New(), waiting: index.NewWaiting(), nodeName: config.NodeName, only: config.Only, podsKnown: config.PodsComplete,
		activity: new(work.Activity), unbound: reasons{changed: config.Explained},
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.claims = newLatest(c.objects, pvapi.KindClaim, c.claimChanged)
	c.volumes = newLatest(c.objects, pvapi.KindVolume, c.volumeChanged)
	c.volumes.same = c.index.Swap
	c.pods = newLatest(c.objects, pvapi.KindPod, c.podChanged)
	c.users.pods = make(map[types.NamespacedName]map[string]*v1.Pod)
	c.classes = newLatest(c.objects, kindClass, c.classChanged)
	return c
}

// reserveStorage keeps a volume for an operation on its storage.
func (c *cluster) reserveStorage(t operation.Task) (forget func(), ok bool) {
	e, ok := c.table.ReserveStorage(t.Volume, t.Removes, t.About)
	if !ok {
		return nil, false
	}
	return e.Forget, true
}

func (c *cluster) warnOfSlow(t operation.Task) {
	c.log.Warn("a plugin does not answer; it is waited for", "object", t.About.String(), "volume", t.Volume, "for", operation.Patience)
}

// fill reads everything once, volumes before claims, so that none is given away
// whose claim has not been seen. It is looked at in the other order: what a
// claim takes at once need not be shown as available first.
func (c *cluster) fill(ctx context.Context) error {
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

// podsComplete reports whether all pods that use claims are known.
func (c *cluster) podsComplete() bool {
	if c.podsKnown == nil {
		return true
	}
	select {
	case <-c.podsKnown:
		return true
	default:
		return false
	}
}

// lookAtClaimsAndVolumes enqueues all that had to wait until the pods were
// complete.
func (c *cluster) lookAtClaimsAndVolumes() {
	for _, pv := range c.volumes.all() {
		c.queue.Add(pvapi.VolumeRef(pv.Name))
	}
	for _, claim := range c.claims.all() {
		c.queue.Add(pvapi.ClaimRef(pvapi.NameOf(claim)))
	}
}

// isSelected reports whether an object is one to work on.
func (c *cluster) isSelected(ref volume.ObjectRef) bool {
	return c.only == nil || ref.Kind == kindClass || ref.Kind == kindNode || c.only(ref)
}

// learn takes note of an object that is not to be worked on.
func (c *cluster) learn(ctx context.Context, ref volume.ObjectRef) (err error) {
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

// claimChanged enqueues the claim, the volumes that mean it, and the one that it
// names no more. It does so after the controller's own reads and writes too: the
// claim may be gone again by the time that they are noted. Only a claim that is
// written for a pair is not enqueued.
func (c *cluster) claimChanged(name types.NamespacedName, prior, now *v1.PersistentVolumeClaim, how noticed) {
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
		c.table.ForgetPods(name)
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
func (c *cluster) expect(claim *v1.PersistentVolumeClaim) {
	if _, bound := claim.Annotations[pvapi.AnnBindCompleted]; bound || claim.DeletionTimestamp != nil || claim.Spec.VolumeName != "" || !c.isSelected(pvapi.ClaimRef(pvapi.NameOf(claim))) {
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
func (c *cluster) volumeChanged(name types.NamespacedName, prior, now *v1.PersistentVolume, how noticed) {
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
func (c *cluster) classChanged(name types.NamespacedName, _, _ *storagev1.StorageClass, _ noticed) {
	for _, claim := range append(c.waiting.OfClass(name.Name), c.waiting.OfClass("")...) {
		if waits, known := c.claims.last(claim); known {
			c.operations.Hurry(provisionKey(waits))
		}
		c.queue.Add(pvapi.ClaimRef(claim))
	}
}

// claimUsers are the pods that name a claim, directly or by an ephemeral volume.
type claimUsers struct {
	mu   sync.Mutex
	pods map[types.NamespacedName]map[string]*v1.Pod // by claim, then by the pod's name
}

// replace has a pod counted as it is now, and no longer as it was. Either may be nil. A
// claim that both name is never without the pod.
func (u *claimUsers) replace(prior, now *v1.Pod) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if prior != nil {
		u.remove(prior)
	}
	if now != nil {
		u.put(now)
	}
}

func (u *claimUsers) put(pod *v1.Pod) {
	for _, claim := range claimsOfPod(pod) {
		if u.pods[claim] == nil {
			u.pods[claim] = make(map[string]*v1.Pod)
		}
		u.pods[claim][pod.Name] = pod
	}
}

func (u *claimUsers) remove(pod *v1.Pod) {
	for _, claim := range claimsOfPod(pod) {
		delete(u.pods[claim], pod.Name)
		if len(u.pods[claim]) == 0 {
			delete(u.pods, claim)
		}
	}
}

// of returns the pods that name a claim, by name.
func (u *claimUsers) of(claim types.NamespacedName) []*v1.Pod {
	u.mu.Lock()
	defer u.mu.Unlock()
	users := u.pods[claim]
	all := make([]*v1.Pod, 0, len(users))
	for _, name := range slices.Sorted(maps.Keys(users)) {
		all = append(all, users[name])
	}
	return all
}

// claimsOfPod returns the claims that a pod names, some maybe twice.
func claimsOfPod(pod *v1.Pod) (names []types.NamespacedName) {
	for i := range pod.Spec.Volumes {
		if name, ok := pvapi.ClaimOf(pod, &pod.Spec.Volumes[i]); ok {
			names = append(names, name)
		}
	}
	return names
}

// podChanged has the pod looked at, and the claims that it names, or has named.
func (c *cluster) podChanged(name types.NamespacedName, prior, now *v1.Pod, how noticed) {
	c.users.replace(prior, now)
	if prior != nil {
		c.lookAtClaims(prior)
	}
	if how != gone {
		c.lookAtClaims(now)
		c.queue.Add(volume.NewObjectRef(pvapi.KindPod, name.Namespace, name.Name)) // which may have claims to make
		return
	}
	for i := range prior.Spec.Volumes {
		c.events.settled(volumeOf(prior, prior.Spec.Volumes[i].Name))
	}
}

func (c *cluster) lookAtClaims(pod *v1.Pod) {
	for _, claim := range claimsOfPod(pod) {
		c.queue.Add(pvapi.ClaimRef(claim))
	}
}

// classOf returns the claim's class, nil where there is none of that name.
func (c *cluster) classOf(ctx context.Context, claim *v1.PersistentVolumeClaim) (*storagev1.StorageClass, error) {
	name := pvapi.ClaimClass(claim, "")
	if name == "" {
		return nil, nil
	}
	class, exists, err := c.classes.get(ctx, types.NamespacedName{Name: name})
	if err == nil && !exists && !c.waiting.IsAbsent(name, claim) {
		// One that the cache has not heard of may say that its claims wait.
		asked := c.waiting.Now()
		if class, exists, err = c.classes.getLive(ctx, types.NamespacedName{Name: name}); err == nil && !exists {
			c.waiting.SetAbsent(name, asked)
		}
	}
	if err != nil || !exists {
		return nil, err
	}
	return class, nil
}

// explainOnNode says of a claim whose pod was placed why there is no volume for it on
// that node.
func (c *cluster) explainOnNode(ctx context.Context, claim *v1.PersistentVolumeClaim, why *index.UnboundError) *index.UnboundError {
	if !errors.Is(why, index.ErrWaitsForConsumer) {
		return why
	}
	node, err := c.selectedNode(ctx, claim)
	if err != nil || node == nil {
		return why
	}
	_, err = c.table.Match(index.Wanted{Claim: claim, NodeName: node.Name, NodeLabels: node.Labels})
	if there, ok := errors.AsType[*index.UnboundError](err); ok {
		return there
	}
	return why
}

// claimOf returns the claim that a volume means, by UID, or nil if it is gone.
// Only the API itself can say that.
func (c *cluster) claimOf(ctx context.Context, ref *v1.ObjectReference) (*v1.PersistentVolumeClaim, error) {
	name := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	claim, exists, err := c.claims.get(ctx, name)
	if err == nil && (!exists || claim.UID != ref.UID) {
		claim, exists, err = c.claims.getLive(ctx, name)
	}
	if err != nil || !exists || claim.UID != ref.UID {
		return nil, err
	}
	return claim, nil
}

func (c *cluster) allPlugins() []volume.VolumePlugin {
	if c.plugins == nil {
		return nil
	}
	return c.plugins.Plugins()
}

func (c *cluster) pluginOf(pv *v1.PersistentVolume) (volume.VolumePlugin, error) {
	if c.plugins == nil {
		return nil, errNoPlugins
	}
	return c.plugins.FindPluginBySpec(volume.NewSpecFromPersistentVolume(pv, false))
}

// changeStatus writes what f makes of a copy of a claim's status.
func (c *cluster) changeStatus(ctx context.Context, claim *v1.PersistentVolumeClaim, f func(*v1.PersistentVolumeClaimStatus)) (*v1.PersistentVolumeClaim, error) {
	next := claim.DeepCopy()
	f(&next.Status)
	stored, err := update(ctx, c.objects.UpdateStatus, next)
	if err != nil {
		return claim, err
	}
	return c.claims.wrote(stored), nil
}

// holdsStorage reports whether a volume stays until its storage was deleted here.
func (c *cluster) holdsStorage(pv *v1.PersistentVolume) bool {
	return slices.ContainsFunc(c.storageFinalizers(), func(held string) bool { return slices.Contains(pv.Finalizers, held) })
}
