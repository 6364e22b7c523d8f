package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/latest"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

const (
	kindClass = "StorageClass"
	kindNode  = "Node"
)

// cluster is what a controller knows of a cluster: the newest version of each object. Only
// [writer] changes any.
type cluster struct {
	objects objects.Client
	claims  *latest.Objects[*v1.PersistentVolumeClaim]
	volumes *latest.Objects[*v1.PersistentVolume]
	classes *latest.Objects[*storagev1.StorageClass]
	pods    *latest.Objects[*v1.Pod]
	users   claimUsers
	// waiting knows of classes that claims wait for and that do not exist.
	waiting *index.Waiting
	queue   *work.Queue[volume.ObjectRef]
	// nodeName is ControllerConfig.NodeName.
	nodeName string
	// only is ControllerConfig.Only.
	only func(volume.ObjectRef) bool
	// podsKnown is ControllerConfig.PodsComplete.
	podsKnown <-chan struct{}
}

// newCluster returns a cluster of which nothing is known yet, and which tells changes.
func newCluster(config ControllerConfig, c *changes) *cluster {
	k := &cluster{objects: config.Objects, waiting: c.waiting, queue: c.queue, nodeName: config.NodeName, only: config.Only, podsKnown: config.PodsComplete}
	k.claims = latest.New(k.objects, pvapi.KindClaim, c.claimChanged)
	k.volumes = latest.New(k.objects, pvapi.KindVolume, c.volumeChanged)
	k.volumes.Same = c.index.Swap
	k.pods = latest.New(k.objects, pvapi.KindPod, c.podChanged)
	k.users.pods = make(map[types.NamespacedName]map[string]*v1.Pod)
	k.classes = latest.New(k.objects, kindClass, c.classChanged)
	c.cluster = k
	return k
}

// fill reads everything once, volumes before claims, so that none is given away
// whose claim has not been seen. Claims are enqueued first: a volume that a claim
// takes at once need not be shown as available before.
func (c *cluster) fill(ctx context.Context) error {
	if _, err := c.classes.Fill(ctx); err != nil {
		return err
	}
	pods, err := c.pods.Fill(ctx)
	if err != nil {
		return err
	}
	volumes, err := c.volumes.Fill(ctx)
	if err != nil {
		return err
	}
	claims, err := c.claims.Fill(ctx)
	if err != nil {
		return err
	}
	for _, claim := range claims {
		c.queue.Enqueue(pvapi.ClaimRef(pvapi.NameOf(claim)))
	}
	for _, pv := range volumes {
		c.queue.Enqueue(pvapi.VolumeRef(pv.Name))
	}
	for _, pod := range pods {
		c.queue.Enqueue(volume.NewObjectRef(pvapi.KindPod, pod.Namespace, pod.Name))
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

// isSelected reports whether an object is one to work on.
func (c *cluster) isSelected(ref volume.ObjectRef) bool {
	return c.only == nil || ref.Kind == kindClass || ref.Kind == kindNode || c.only(ref)
}

// learn takes note of an object that is not to be worked on.
func (c *cluster) learn(ctx context.Context, ref volume.ObjectRef) (err error) {
	switch ref.Kind {
	case pvapi.KindClaim:
		_, _, err = c.claims.Get(ctx, ref.NamespacedName)
	case pvapi.KindVolume:
		_, _, err = c.volumes.Get(ctx, ref.NamespacedName)
	case pvapi.KindPod:
		_, _, err = c.pods.Get(ctx, ref.NamespacedName)
	}
	return err
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
		if name, ok := claimbinding.ClaimOf(pod, &pod.Spec.Volumes[i]); ok {
			names = append(names, name)
		}
	}
	return names
}

// classOf returns the claim's class, nil where there is none of that name.
func (c *cluster) classOf(ctx context.Context, claim *v1.PersistentVolumeClaim) (*storagev1.StorageClass, error) {
	name := pvapi.ClaimClass(claim, "")
	if name == "" {
		return nil, nil
	}
	class, exists, err := c.classes.Get(ctx, types.NamespacedName{Name: name})
	if err == nil && !exists && !c.waiting.IsAbsent(name, claim) {
		// One that the cache has not heard of may say that its claims wait.
		asked := c.waiting.Now()
		if class, exists, err = c.classes.GetLive(ctx, types.NamespacedName{Name: name}); err == nil && !exists {
			c.waiting.SetAbsent(name, asked)
		}
	}
	if err != nil || !exists {
		return nil, err
	}
	return class, nil
}

// claimOf returns the claim that a volume means, by UID, or nil if it is gone.
// Only the API itself can say that.
func (c *cluster) claimOf(ctx context.Context, ref *v1.ObjectReference) (*v1.PersistentVolumeClaim, error) {
	name := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	claim, exists, err := c.claims.Get(ctx, name)
	if err == nil && (!exists || claim.UID != ref.UID) {
		claim, exists, err = c.claims.GetLive(ctx, name)
	}
	if err != nil || !exists || claim.UID != ref.UID {
		return nil, err
	}
	return claim, nil
}

// here narrows a search to volumes that the only node can reach, if there is but
// one ([ControllerConfig.NodeName]).
func (c *cluster) here(ctx context.Context, w index.Wanted) (index.Wanted, error) {
	if c.nodeName == "" {
		return w, nil
	}
	w.NodeName = c.nodeName
	node, err := objects.Get[*v1.Node](ctx, c.objects, volume.NewObjectRef(kindNode, "", c.nodeName))
	switch {
	case err == nil:
		w.NodeLabels = node.Labels
	case !errors.Is(err, volume.ErrNotFound):
		return w, err
	}
	return w, nil
}

// selectedNode returns the node that was chosen for the claim's first pod, nil
// where none was.
func (c *cluster) selectedNode(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.Node, error) {
	return c.nodeNamed(ctx, claim.Annotations[annSelectedNode])
}

func (c *cluster) nodeNamed(ctx context.Context, name string) (*v1.Node, error) {
	if name == "" {
		return nil, nil
	}
	node, err := objects.Get[*v1.Node](ctx, c.objects, volume.NewObjectRef(kindNode, "", name))
	if errors.Is(err, volume.ErrNotFound) {
		return objects.Get[*v1.Node](ctx, objects.Live(c.objects), volume.NewObjectRef(kindNode, "", name))
	}
	return node, err
}

// isUsed reports whether a pod uses a claim. The API itself is asked before the
// answer is no.
func (c *cluster) isUsed(ctx context.Context, claim *v1.PersistentVolumeClaim) (bool, error) {
	uses := func(pod *v1.Pod) bool { return usesClaim(pod, claim) }
	if slices.ContainsFunc(c.users.of(pvapi.NameOf(claim)), uses) {
		return true, nil
	}
	pods, err := objects.List[*v1.Pod](ctx, objects.Live(c.objects), pvapi.KindPod, claim.Namespace)
	if i := slices.IndexFunc(pods, uses); err == nil && i >= 0 {
		// That it has gone may never be heard of.
		return true, fmt.Errorf("%w: pod %q uses the claim, which the cache has not heard of", objects.ErrConflict, pods[i].Name)
	}
	return false, err
}

// catchUp learns of everything that the API has, without waiting for the watches.
// It reports whether anything is new, and enqueues missing objects.
func (c *cluster) catchUp(ctx context.Context) (news bool, missing []volume.ObjectRef, err error) {
	for _, one := range []func(context.Context) (bool, []volume.ObjectRef, error){c.classes.CatchUp, c.pods.CatchUp, c.volumes.CatchUp, c.claims.CatchUp} {
		newer, gone, err := one(ctx)
		if err != nil {
			return false, nil, err
		}
		news = news || newer
		missing = append(missing, gone...)
	}
	for _, ref := range missing {
		c.queue.Enqueue(ref)
	}
	return news, missing, nil
}

// enqueueAll enqueues what had to wait until the pods were complete.
func (c *cluster) enqueueAll() {
	for _, pv := range c.volumes.All() {
		c.queue.Enqueue(pvapi.VolumeRef(pv.Name))
	}
	for _, claim := range c.claims.All() {
		c.queue.Enqueue(pvapi.ClaimRef(pvapi.NameOf(claim)))
	}
}
