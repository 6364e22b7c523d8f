package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
	"github.com/podvol/podvol/volume/persistentvolume/internal/reservation"
)

var (
	// ErrNotBoundYet says that a pod uses a claim that is bound without looking
	// at the pod's node, and is not bound yet; it can be placed once it is.
	ErrNotBoundYet = errors.New("the claim is bound at once, whatever the node, and is not bound yet")
	// ErrUsedByOtherPod says that a claim with access mode ReadWriteOncePod has
	// another pod that has not ended.
	ErrUsedByOtherPod = errors.New("the claim is ReadWriteOncePod, and another pod uses it")
	// ErrOtherNodeSelected says that storage is being made for a claim on
	// another node.
	ErrOtherNodeSelected = errors.New("storage is being made for the claim on another node")
)

// NodeConflict is the reason why a pod's volumes cannot be on a node.
type NodeConflict struct {
	Node  string
	Claim types.NamespacedName
	// Err is an *[index.UnboundError], [ErrOtherNodeSelected], [ErrNoCapacity], or says that the
	// claim's volume cannot be reached from the node.
	Err error
}

// PlacementError says why a pod cannot be placed.
type PlacementError struct {
	Pod types.NamespacedName
	// Claim is the claim that allows no node at all, with Err; else Nodes says
	// why for each node.
	Claim types.NamespacedName
	Err   error
	Nodes []NodeConflict
}

func (e *PlacementError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("place pod %q: PersistentVolumeClaim %q: %v", e.Pod, e.Claim, e.Err)
	}
	if len(e.Nodes) == 0 {
		return fmt.Sprintf("place pod %q: there is no node", e.Pod)
	}
	parts := make([]string, 0, index.MaxNamed+1)
	for i, m := range e.Nodes {
		if i == index.MaxNamed {
			parts = append(parts, fmt.Sprintf("%d more nodes", len(e.Nodes)-index.MaxNamed))
			break
		}
		parts = append(parts, fmt.Sprintf("node %q: PersistentVolumeClaim %q: %v", m.Node, m.Claim, m.Err))
	}
	return fmt.Sprintf("place pod %q: %s", e.Pod, strings.Join(parts, "; "))
}

// Unwrap returns the reasons.
func (e *PlacementError) Unwrap() []error {
	if e.Err != nil {
		return []error{e.Err}
	}
	errs := make([]error, 0, len(e.Nodes))
	for _, m := range e.Nodes {
		errs = append(errs, m.Err)
	}
	return errs
}

// Binding is a volume that is reserved for a claim. Neither must be changed.
type Binding struct {
	Claim  *v1.PersistentVolumeClaim
	Volume *v1.PersistentVolume
}

// Placement is a node that can hold all volumes of a pod, and the steps for that.
// Until it is committed or rolled back, no other claim gets these volumes, and no
// other pod is placed that needs these claims bound. A claim with access mode
// ReadWriteOncePod is kept for the pod even after it was committed, until the pod
// has gone or ended, or another was put on a node first.
type Placement struct {
	Node string
	// Bind are the volumes for claims that wait for their first consumer.
	Bind []Binding
	// Provision are the claims whose storage is to be made on the node. They must
	// not be changed.
	Provision []*v1.PersistentVolumeClaim

	placer *placer
	mu     sync.Mutex
	// reserved is all that the placement keeps others from.
	reserved entries
}

type entries []*reservation.Entry

func (es entries) forget() {
	for _, e := range es {
		e.Forget()
	}
}

// take empties the placement and returns its content.
func (p *Placement) take() (provision []*v1.PersistentVolumeClaim, reserved entries) {
	p.mu.Lock()
	defer p.mu.Unlock()
	provision, reserved = p.Provision, p.reserved
	p.Bind, p.Provision, p.reserved = nil, nil, nil
	return provision, reserved
}

// Place returns the first of some nodes that can hold all volumes of a pod, by the rules
// of Kubernetes' scheduler. The nodes are in the caller's order of preference. Pod and
// nodes are only read.
//
//   - A bound volume must be reachable from the node. A claim that waits for its first
//     consumer must find a volume there, or have one made.
//   - If its CSI driver tells its capacity (storageCapacity), that must be enough. Each
//     call asks the API for the driver and for all CSIStorageCapacity.
//   - The controller must run. Until it has seen all objects, Place waits, at most for
//     ctx.
//   - The error is a *[PlacementError]: it matches [volume.ErrNotFound] where a claim does
//     not exist, [ErrNotBoundYet], [ErrUsedByOtherPod], [ErrOtherNodeSelected],
//     [ErrNoCapacity], or [index.ErrReserved] while another pod is placed with the same
//     claim.
func (c *Controller) Place(ctx context.Context, pod *v1.Pod, nodes []*v1.Node) (*Placement, error) {
	select {
	case <-c.synced:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return c.placer.place(ctx, pod, nodes)
}

// placer finds nodes for pods, and reserves for them what it has found there.
type placer struct {
	cluster    *cluster
	writer     *writer
	table      *reservation.Table
	operations *operation.Executor
	// isExternal reports whether another process provisions volumes under a name.
	isExternal func(provisioner string) bool
	// fills is provisioner.fills.
	fills func(provisioner string) bool
}

func (c *placer) place(ctx context.Context, pod *v1.Pod, nodes []*v1.Node) (*Placement, error) {
	failed := &PlacementError{Pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}}
	var needs []need
	var forPod entries
	for _, name := range uniqueClaims(pod) {
		n, err := c.needOf(ctx, pod, name, &forPod)
		if err != nil {
			forPod.forget()
			failed.Claim, failed.Err = name, err
			return nil, failed
		}
		needs = append(needs, n)
	}
	// The smallest first, as Kubernetes does, so that it leaves the larger
	// volumes to those that need them.
	slices.SortStableFunc(needs, func(a, b need) int {
		return index.SizeOf(a.claim.Spec.Resources.Requests[v1.ResourceStorage]).Compare(index.SizeOf(b.claim.Spec.Resources.Requests[v1.ResourceStorage]))
	})
	for _, node := range nodes {
		p, misplaced := c.placeOn(node, needs)
		if misplaced == nil {
			p.reserved = append(p.reserved, forPod...)
			return p, nil
		}
		failed.Nodes = append(failed.Nodes, *misplaced)
	}
	forPod.forget()
	return nil, failed
}

func uniqueClaims(pod *v1.Pod) []types.NamespacedName {
	names := claimsOfPod(pod)
	slices.SortFunc(names, func(a, b types.NamespacedName) int { return strings.Compare(a.Name, b.Name) })
	return slices.Compact(names)
}

// need is what a claim needs of a node.
type need struct {
	claim *v1.PersistentVolumeClaim
	class *storagev1.StorageClass
	// bound is its volume; nil for one that waits for its first consumer.
	bound *v1.PersistentVolume
	room  room
}

// needOf refuses a claim with which the pod can be on no node. A claim for one pod alone is
// reserved for this one.
func (c *placer) needOf(ctx context.Context, pod *v1.Pod, name types.NamespacedName, forPod *entries) (need, error) {
	claim, exists, err := c.cluster.claims.Get(ctx, name)
	switch {
	case err != nil:
		return need{}, err
	case !exists:
		return need{}, &volume.ObjectNotFoundError{Ref: pvapi.ClaimRef(name)}
	case claim.DeletionTimestamp != nil:
		return need{}, fmt.Errorf("%w: it is being deleted; make it again once it is gone", claimbinding.ErrUnbound)
	}
	if slices.Contains(claim.Spec.AccessModes, v1.ReadWriteOncePod) {
		e, err := c.reserveForPod(ctx, pod, name)
		if err != nil {
			return need{}, err
		}
		*forPod = append(*forPod, e)
	}
	for _, v := range pod.Spec.Volumes {
		if own, ok := claimbinding.ClaimOf(pod, &v); ok && own == name && v.Ephemeral != nil && !metav1.IsControlledBy(claim, pod) {
			return need{}, fmt.Errorf("%w: it was not made for the pod's ephemeral volume %q; delete it, or rename the volume", claimbinding.ErrElsewhere, v.Name)
		}
	}
	if _, bound := claim.Annotations[pvapi.AnnBindCompleted]; bound {
		pv, exists, err := c.cluster.volumes.Get(ctx, types.NamespacedName{Name: claim.Spec.VolumeName})
		if err == nil && (!exists || claim.Status.Phase == v1.ClaimBound || claim.Status.Phase == v1.ClaimLost) {
			err = claimbinding.Check(claim, pv)
		}
		return need{claim: claim, bound: pv}, err
	}
	class, err := c.cluster.classOf(ctx, claim)
	if err == nil {
		err = checkClass(class)
	}
	if err == nil && (!waitsForConsumer(class) || claim.Spec.VolumeName != "") {
		err = ErrNotBoundYet
	}
	if err != nil {
		return need{}, err
	}
	room, err := c.roomOf(ctx, class)
	return need{claim: claim, class: class, room: room}, err
}

// placeOn reserves on a node what all needs need, or nothing.
func (c *placer) placeOn(node *v1.Node, needs []need) (*Placement, *NodeConflict) {
	p := &Placement{Node: node.Name, placer: c}
	for _, n := range needs {
		if err := p.add(n, node); err != nil {
			p.Rollback()
			return nil, &NodeConflict{Node: node.Name, Claim: pvapi.NameOf(n.claim), Err: err}
		}
	}
	return p, nil
}

func (p *Placement) add(n need, node *v1.Node) error {
	if n.bound != nil {
		reachable, err := claimbinding.MatchesNode(n.bound, node.Labels, node.Name)
		if err == nil && !reachable {
			err = fmt.Errorf("its volume %q cannot be reached from there", n.bound.Name)
		}
		return err
	}
	c := p.placer
	if selected := n.claim.Annotations[annSelectedNode]; selected != "" && selected != node.Name && !c.isUntried(n.claim, node.Name) {
		return fmt.Errorf("%w: %s", ErrOtherNodeSelected, selected)
	}
	if n.claim.Annotations[annSelectedNode] != "" && (isProvisioning(n.claim) || c.isExternal(n.class.Provisioner)) {
		return nil // under way, on this node
	}
	assumed, err := c.table.Reserve(index.Wanted{Claim: n.claim, NodeName: node.Name, NodeLabels: node.Labels})
	if err == nil {
		p.Bind = append(p.Bind, Binding{Claim: n.claim, Volume: assumed.Volume()})
		p.reserved = append(p.reserved, assumed)
		return nil
	}
	needs := errors.Is(err, index.ErrNeedsData)
	switch {
	case needs && !canBeFilled(n.claim, n.class, c.fills), !needs && !errors.Is(err, claimbinding.ErrUnbound), n.class.Provisioner == noProvisioner:
		return err
	case !isAllowedOn(n.class, node):
		return notMadeOn(err, n.class, node)
	}
	if err := n.room.check(n.claim, n.class, node); err != nil {
		return err
	}
	provisioning, err := c.table.ReserveProvisioning(index.IDOf(n.claim))
	if err != nil {
		return err
	}
	p.Provision = append(p.Provision, n.claim)
	p.reserved = append(p.reserved, provisioning)
	return nil
}

// isUntried reports whether making a claim's storage on the selected node has
// failed and left nothing, and this node would be tried at once.
func (c *placer) isUntried(claim *v1.PersistentVolumeClaim, node string) bool {
	return !isProvisioning(claim) && c.operations.MayMove(provisionKey(claim), node)
}

// Commit has the volumes bound and made: it writes each volume's claimRef, and
// the node into claims for which storage is to be made; the controller does the
// rest, and the pod can start when its claims are Bound. It ends the placement.
// An error that matches [objects.ErrConflict] says that another writer was
// faster; writes stay after any error, and Place can be called again.
func (p *Placement) Commit(ctx context.Context) error {
	provision, reserved := p.take()
	err := p.commit(ctx, provision, reserved)
	for _, e := range reserved {
		if err != nil || e.Kind() != reservation.ForPod {
			e.Forget()
		}
	}
	return err
}

func (p *Placement) commit(ctx context.Context, provision []*v1.PersistentVolumeClaim, reserved entries) error {
	for _, e := range reserved {
		if e.Kind() != reservation.Assumed {
			continue
		}
		if err := p.placer.bind(ctx, e); err != nil {
			return err
		}
	}
	for _, claim := range provision {
		next := claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, annSelectedNode, p.Node)
		if _, err := p.placer.writer.updateClaim(ctx, claim, next); err != nil {
			return fmt.Errorf("select node %q for PersistentVolumeClaim %q: %w", p.Node, pvapi.NameOf(claim), err)
		}
	}
	return nil
}

// bind writes the claimRef of a volume that is reserved for a claim.
func (c *placer) bind(ctx context.Context, assumed *reservation.Entry) error {
	id, pv := assumed.Claim(), assumed.Volume()
	turn, err := c.table.ReserveWriting(ctx, pv.Name)
	if err != nil {
		return err
	}
	defer turn.Forget()
	claim, exists, err := c.cluster.claims.Get(ctx, id.NamespacedName)
	if err == nil && (!exists || claim.UID != id.UID) {
		err = &volume.ObjectNotFoundError{Ref: pvapi.ClaimRef(id.NamespacedName)}
	}
	if err == nil && claim.DeletionTimestamp != nil { // it would take the volume with it
		err = fmt.Errorf("%w: PersistentVolumeClaim %q is being deleted; make it again once it is gone", claimbinding.ErrUnbound, id)
	}
	if err != nil {
		return err
	}
	if pv, err = c.writer.UpdateVolume(ctx, pv, boundVolume(pv, claim)); err != nil {
		return fmt.Errorf("bind volume %q to PersistentVolumeClaim %q: %w", pv.Name, id, err)
	}
	assumed.Assume(pv)
	return nil
}

// Rollback gives back all that was not committed. It may be called at any time,
// also while the placement is committed, and twice.
func (p *Placement) Rollback() {
	_, reserved := p.take()
	reserved.forget()
}
