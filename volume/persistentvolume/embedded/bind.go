package embedded

import (
	"context"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/podstate"
)

// Bind applies pods, puts them on this node, and returns when all their claims are bound
// or it is known why they are not. It is idempotent and safe for concurrent use; the pods
// are only read. The cluster must run meanwhile.
//
//   - Claims that wait for their first consumer get their volumes here, or have them made
//     here. ctx limits the time.
//   - Pods whose volumes are mounted already come first, then the others in order: of two
//     that want a claim with access mode ReadWriteOncePod, the first has it.
//   - A claim that no container of its pod uses is not waited for: nodes do not mount it
//     ([podstate.UsesVolume]).
//   - The error is a *[BindError] with every claim that a pod has not got; all others are
//     bound. If ctx ends, it matches the context's cause too, and the operations go on.
//   - Any other error says that pods could not be applied, or objects not be read.
func (c *Cluster) Bind(ctx context.Context, pods ...*v1.Pod) error {
	for _, pod := range pods {
		if err := c.Apply(ctx, pod); err != nil {
			return err
		}
	}
	b := newBinding(c, c.placedFirst(ctx, onlyUsed(pods)))
	for {
		if err := b.waitForClaims(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		if ctx.Err() != nil || !b.place(ctx) {
			return b.outcome(ctx, context.Cause(ctx))
		}
	}
}

// Place puts a pod that was applied on this node, as far as that can be said now:
// its claims that wait for their first consumer are bound here, or their volumes
// begun to be made. It waits for nothing else; [Cluster.Bind] does. It must be
// asked again when a claim of the pod has changed, until it returns nil: then
// all its claims are bound that a container uses. The error is a *[BindError], or
// says that objects could not be read.
func (c *Cluster) Place(ctx context.Context, pod *v1.Pod) error {
	b := newBinding(c, onlyUsed([]*v1.Pod{pod}))
	b.place(ctx)
	return b.outcome(ctx, nil)
}

// onlyUsed returns the pods without the claims that none of their containers uses: a
// node does not mount them, so nothing waits for them.
func onlyUsed(pods []*v1.Pod) []*v1.Pod {
	used := make([]*v1.Pod, len(pods))
	for i, pod := range pods {
		left := pod.DeepCopy()
		left.Spec.Volumes = slices.DeleteFunc(left.Spec.Volumes, func(v v1.Volume) bool {
			_, isClaim := claimbinding.ClaimOf(pod, &v)
			return isClaim && !podstate.UsesVolume(pod, v.Name)
		})
		used[i] = left
	}
	return used
}

// binding is one call of Bind.
type binding struct {
	cluster *Cluster
	pods    []*v1.Pod
	// refused are the pods that cannot be on the node, as seen last.
	refused map[*v1.Pod]error
	// settled are the pods that are on the node, with all their claims.
	settled map[*v1.Pod]bool
	// tried are the claims for which a volume was to be made already: a failure
	// is not tried again here, the controller does that.
	tried map[index.ClaimID]bool
}

func newBinding(c *Cluster, pods []*v1.Pod) *binding {
	return &binding{cluster: c, pods: pods, refused: make(map[*v1.Pod]error), settled: make(map[*v1.Pod]bool), tried: make(map[index.ClaimID]bool)}
}

// placedFirst orders pods: those that are on the node first.
func (c *Cluster) placedFirst(ctx context.Context, pods []*v1.Pod) []*v1.Pod {
	var placed, others []*v1.Pod
	for _, pod := range pods {
		if stored, err := objects.Get[*v1.Pod](ctx, c.objects, refOf(pod)); err == nil && stored.Spec.NodeName != "" {
			placed = append(placed, pod)
		} else {
			others = append(others, pod)
		}
	}
	return append(placed, others...)
}

// waitForClaims returns when all claims of the pods are bound or the controller has done
// what there is to do.
func (b *binding) waitForClaims(ctx context.Context) error {
	changed, stop := b.cluster.watch(kindClaim)
	defer stop()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	idle := make(chan error, 1)
	go func() { idle <- b.cluster.controller.Idle(waiting) }()
	for {
		if b.allBound(ctx) {
			cancel()
			<-idle
			return nil
		}
		select {
		case <-changed:
		case err := <-idle:
			return err
		}
	}
}

func (b *binding) allBound(ctx context.Context) bool {
	return !slices.ContainsFunc(b.pods, func(pod *v1.Pod) bool { return !b.hasAll(ctx, pod) })
}

// hasAll reports whether all claims of a pod are bound.
func (b *binding) hasAll(ctx context.Context, pod *v1.Pod) bool {
	return !slices.ContainsFunc(claimsOf(pod), func(claim types.NamespacedName) bool { return !b.isBound(ctx, claim) })
}

// isBound reports whether a node may mount a claim. The objects are asked and not
// the controller: they tell of a change once they have it, and the controller
// notes later what it has written.
func (b *binding) isBound(ctx context.Context, name types.NamespacedName) bool {
	claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, b.cluster.objects, volume.NewObjectRef(kindClaim, name.Namespace, name.Name))
	if err != nil {
		return false
	}
	pv, err := objects.Get[*v1.PersistentVolume](ctx, b.cluster.objects, volume.NewObjectRef(kindVolume, "", claim.Spec.VolumeName))
	return err == nil && claimbinding.Check(claim, pv) == nil
}

// place places all pods that can be, and reports whether there is more to wait
// for.
func (b *binding) place(ctx context.Context) (progress bool) {
	for _, pod := range b.pods {
		begun, err := b.placePod(ctx, pod)
		progress = progress || begun
		b.refused[pod] = err
	}
	return progress
}

// placePod places one pod, and reports whether that has begun anything.
func (b *binding) placePod(ctx context.Context, pod *v1.Pod) (begun bool, err error) {
	// Two pods that want what only one can have are placed one after the other.
	unlock, err := b.cluster.placing.Lock(ctx, struct{}{})
	if err != nil {
		return false, err
	}
	defer unlock()
	err = retry.Do(ctx, objects.ErrConflict, func() error {
		begun, err = b.tryPlace(ctx, pod)
		return err
	})
	if err != nil || begun {
		return begun, err
	}
	b.settled[pod], err = b.settleOn(ctx, pod)
	return false, err
}

func (b *binding) tryPlace(ctx context.Context, pod *v1.Pod) (begun bool, err error) {
	node, err := objects.Get[*v1.Node](ctx, b.cluster.objects, b.cluster.nodeRef())
	if err != nil {
		return false, err
	}
	mounted, err := b.mountedForPlacing(ctx, pod)
	if err != nil {
		return false, err
	}
	if err := b.cluster.checkUsers(ctx, pod, mounted); err != nil {
		return false, err
	}
	p, err := b.cluster.controller.Place(ctx, b.withoutDeleted(ctx, pod, mounted), []*v1.Node{node})
	if err != nil {
		return false, err
	}
	for _, claim := range p.Provision {
		if b.tried[index.IDOf(claim)] {
			p.Rollback()
			return false, nil
		}
	}
	for _, claim := range p.Provision {
		b.tried[index.IDOf(claim)] = true
	}
	begun = len(p.Bind)+len(p.Provision) > 0
	return begun, p.Commit(ctx)
}

// mountedForPlacing returns the mounts of a pod's claims that decide whether it
// is placed: of claims for one pod alone, and, for this pod, of claims that are
// being deleted.
func (b *binding) mountedForPlacing(ctx context.Context, pod *v1.Pod) ([]Mounted, error) {
	var (
		own  types.UID
		sole []types.NamespacedName
	)
	for _, name := range claimsOf(pod) {
		claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, b.cluster.objects, volume.NewObjectRef(kindClaim, name.Namespace, name.Name))
		if err != nil {
			continue // which others say
		}
		if isForOnePod(claim) {
			sole = append(sole, name)
		}
		if claim.DeletionTimestamp != nil {
			own = pod.UID
		}
	}
	return b.cluster.mountedOf(ctx, own, sole...)
}

func isForOnePod(claim *v1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Spec.AccessModes, v1.ReadWriteOncePod)
}

// withoutDeleted returns a pod without the claims in deletion that it has mounted:
// these it keeps until it ends, and a pod that has none of them mounted gets none.
func (b *binding) withoutDeleted(ctx context.Context, pod *v1.Pod, mounted []Mounted) *v1.Pod {
	kept := func(v v1.Volume) bool {
		name, isClaim := claimbinding.ClaimOf(pod, &v)
		if !isClaim || !slices.ContainsFunc(mounted, func(m Mounted) bool { return m.PodUID == pod.UID && m.Claim == name }) {
			return false
		}
		claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, b.cluster.objects, volume.NewObjectRef(kindClaim, name.Namespace, name.Name))
		return err == nil && claim.DeletionTimestamp != nil && hasMounted(mounted, pod.UID, name, claim.Spec.VolumeName)
	}
	if !slices.ContainsFunc(pod.Spec.Volumes, kept) {
		return pod
	}
	left := pod.DeepCopy()
	left.Spec.Volumes = slices.DeleteFunc(left.Spec.Volumes, kept)
	return left
}

// settleOn writes down that a pod is on the node, once all its claims are bound:
// from now on it uses them. It reports whether that is so.
func (b *binding) settleOn(ctx context.Context, pod *v1.Pod) (settled bool, err error) {
	if !b.hasAll(ctx, pod) {
		return false, nil
	}
	err = retry.Do(ctx, objects.ErrConflict, func() error {
		stored, err := objects.Get[*v1.Pod](ctx, b.cluster.objects, refOf(pod))
		if err != nil {
			return err
		}
		next, used := stored.DeepCopy(), claimsOf(stored)
		next.Spec.NodeName = b.cluster.nodeName
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			if name, _ := claimbinding.ClaimOf(pod, v); v.PersistentVolumeClaim != nil && !slices.Contains(used, name) {
				next.Spec.Volumes = append(next.Spec.Volumes, *v.DeepCopy())
			}
		}
		if stored.Spec.NodeName == b.cluster.nodeName && len(next.Spec.Volumes) == len(stored.Spec.Volumes) {
			return nil
		}
		_, err = b.cluster.objects.Update(ctx, next)
		return err
	})
	return err == nil, err
}

// claimsOf returns the claims of a pod, also of its ephemeral volumes, each once.
func claimsOf(pod *v1.Pod) (names []types.NamespacedName) {
	seen := make(map[string]bool)
	for i := range pod.Spec.Volumes {
		if name, isClaim := claimbinding.ClaimOf(pod, &pod.Spec.Volumes[i]); isClaim && !seen[name.Name] {
			seen[name.Name] = true
			names = append(names, name)
		}
	}
	return names
}

// outcome returns nil once all pods are on the node, else why they are not. The last claim
// of a pod may be bound just after the pod was tried: then it is tried again. A pod that is
// not on the node does not use its claims, and so must not mount them.
func (b *binding) outcome(ctx context.Context, ended error) error {
	for {
		if err := b.report(ctx, ended); err != nil {
			return err
		}
		left := slices.DeleteFunc(slices.Clone(b.pods), func(pod *v1.Pod) bool { return b.settled[pod] })
		if len(left) == 0 {
			return nil
		}
		if ctx.Err() != nil {
			return &BindError{ended: context.Cause(ctx)}
		}
		b.place(ctx)
	}
}

// report says which claims the pods have not got.
func (b *binding) report(ctx context.Context, ended error) error {
	failed := &BindError{ended: ended}
	for _, pod := range b.pods {
		refused, about := b.refused[pod], types.NamespacedName{}
		if placement, ok := errors.AsType[*persistentvolume.PlacementError](refused); ok {
			about, refused = causeOf(placement)
		} else if refused != nil && ended == nil {
			return refused
		}
		for _, claim := range claimsOf(pod) {
			err := b.whyNot(ctx, claim, refused, about)
			b.cluster.reasons.placing(claim, refOf(pod), err)
			if err != nil {
				failed.Unbound = append(failed.Unbound, &UnboundClaim{Pod: volume.NewObjectRef(kindPod, pod.Namespace, pod.Name).NamespacedName, PodUID: pod.UID, Claim: claim, Err: err})
			}
		}
	}
	if len(failed.Unbound) == 0 {
		return nil
	}
	return failed
}

// causeOf returns the claim for which the pod cannot be on the node, and why.
func causeOf(e *persistentvolume.PlacementError) (types.NamespacedName, error) {
	if e.Err != nil || len(e.Nodes) == 0 {
		return e.Claim, e.Err
	}
	return e.Nodes[0].Claim, e.Nodes[0].Err
}

// whyNot says why a pod has not got a claim, nil if it has. Refused is why the
// pod cannot be on the node, which is about one of its claims.
func (b *binding) whyNot(ctx context.Context, claim types.NamespacedName, refused error, about types.NamespacedName) error {
	var err error
	ctx = context.WithoutCancel(ctx)
	if !b.isBound(ctx, claim) {
		err = b.cluster.controller.Explain(claim)
		if err == nil && !b.isBound(ctx, claim) { // the controller has not heard of the last change
			err = persistentvolume.ErrNotSynced
		}
	}
	waits := errors.Is(err, index.ErrWaitsForConsumer)
	switch {
	case refused == nil:
	case claim == about && (err == nil || waits):
		err = refused
	case claim != about && waits:
		return &index.UnboundError{Claim: claim, Err: &otherClaimError{about}}
	}
	if _, told := errors.AsType[*index.UnboundError](err); err != nil && !told {
		err = &index.UnboundError{Claim: claim, Err: err}
	}
	return b.cluster.withClass(ctx, claim, err)
}
