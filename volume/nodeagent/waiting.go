package nodeagent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Some reasons to wait have no name, or have more than a name. A pod's claims
// have names, and the pod waits under these. A StorageClass stands for the
// unclaimed volumes of that class.
var (
	// anything: it is not known which change helps.
	anything = volume.ObjectRef{}
	// anotherPod: another pod releases a claim that is for one pod alone.
	anotherPod = volume.ObjectRef{Kind: "Pod"}
)

func freeOf(class string) volume.ObjectRef { return volume.NewObjectRef("StorageClass", "", class) }

// awaited returns the objects that an unplaced pod waits for. All such pods also
// wait for the node and for storage classes, which seldom change.
func (c *claims) awaited(ctx context.Context, w waitingPod) (refs []volume.ObjectRef) {
	for i := range w.pod.Spec.Volumes {
		if claim, is := claimbinding.ClaimOf(w.pod, &w.pod.Spec.Volumes[i]); is {
			refs = append(refs, volume.NewObjectRef("PersistentVolumeClaim", claim.Namespace, claim.Name))
		}
	}
	bind, ok := errors.AsType[*embedded.BindError](w.err)
	if !ok {
		return append(refs, anything)
	}
	for _, unbound := range bind.Unbound {
		if errors.Is(unbound.Err, persistentvolume.ErrUsedByOtherPod) {
			refs = append(refs, anotherPod)
		}
		ref := volume.NewObjectRef("PersistentVolumeClaim", unbound.Claim.Namespace, unbound.Claim.Name)
		claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, c.cluster.Objects(), ref)
		switch {
		case err == nil && claim.Spec.StorageClassName != nil:
			refs = append(refs, freeOf(classOf(claim, *claim.Spec.StorageClassName)))
		case !errors.Is(err, volume.ErrNotFound): // it cannot be read, or has no class yet
			refs = append(refs, anything)
		}
	}
	return refs
}

// concerned returns the changed objects that pods may wait for; nil: all pods are
// concerned.
func (c *claims) concerned(ctx context.Context, changed map[volume.ObjectRef]bool) []volume.ObjectRef {
	refs := []volume.ObjectRef{anything}
	for ref := range changed {
		switch ref.Kind {
		case "PersistentVolumeClaim":
			refs = append(refs, ref)
		case "Pod":
			refs = append(refs, anotherPod)
		case "PersistentVolume":
			pv, err := objects.Get[*v1.PersistentVolume](ctx, c.cluster.Objects(), ref)
			switch {
			case errors.Is(err, volume.ErrNotFound): // which is no pod's volume
			case err != nil:
				return nil
			case pv.Spec.ClaimRef != nil:
				refs = append(refs, volume.NewObjectRef("PersistentVolumeClaim", pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name))
			default:
				refs = append(refs, freeOf(classOf(pv, pv.Spec.StorageClassName)))
			}
		default: // the node, or a class
			return nil
		}
	}
	return refs
}

// waitingPods are the unplaced pods and the objects that each waits for. Several
// goroutines use it.
type waitingPods struct {
	mu  sync.Mutex
	all map[types.UID]waitingPod
	// refs has the objects that each pod waits for. by has the pods that wait for
	// each object.
	refs map[types.UID][]volume.ObjectRef
	by   map[volume.ObjectRef]map[types.UID]bool
}

func newWaitingPods() *waitingPods {
	return &waitingPods{
		all: make(map[types.UID]waitingPod), refs: make(map[types.UID][]volume.ObjectRef), by: make(map[volume.ObjectRef]map[types.UID]bool),
	}
}

func (p *waitingPods) put(w waitingPod, refs []volume.ObjectRef) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(w.pod.UID)
	p.all[w.pod.UID], p.refs[w.pod.UID] = w, refs
	for _, ref := range refs {
		if p.by[ref] == nil {
			p.by[ref] = make(map[types.UID]bool)
		}
		p.by[ref][w.pod.UID] = true
	}
}

func (p *waitingPods) get(uid types.UID) (w waitingPod, there bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, there = p.all[uid]
	return w, there
}

func (p *waitingPods) remove(uid types.UID) (w waitingPod, there bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, there = p.all[uid]
	p.forget(uid)
	return w, there
}

// forget removes a pod. The caller holds the lock.
func (p *waitingPods) forget(uid types.UID) {
	for _, ref := range p.refs[uid] {
		delete(p.by[ref], uid)
		if len(p.by[ref]) == 0 {
			delete(p.by, ref)
		}
	}
	delete(p.refs, uid)
	delete(p.all, uid)
}

// waitingFor returns the pods that wait for one of the objects, in order; nil
// means every object. Its cost depends on the result only.
func (p *waitingPods) waitingFor(refs []volume.ObjectRef) []waitingPod {
	p.mu.Lock()
	defer p.mu.Unlock()
	if refs == nil {
		return inOrder(p.all)
	}
	found := make(map[types.UID]waitingPod)
	for _, ref := range refs {
		for uid := range p.by[ref] {
			found[uid] = p.all[uid]
		}
	}
	return inOrder(found)
}

func (p *waitingPods) sorted() []waitingPod { return p.waitingFor(nil) }

func inOrder(pods map[types.UID]waitingPod) []waitingPod {
	return slices.SortedFunc(maps.Values(pods), func(a, b waitingPod) int {
		return strings.Compare(a.pod.Namespace+"/"+a.pod.Name, b.pod.Namespace+"/"+b.pod.Name)
	})
}

// rows are the rows of all pods of which nothing is mounted.
func (p *waitingPods) rows() (rows []volumemanager.VolumeStatus) {
	for _, w := range p.sorted() {
		if !w.mounted {
			rows = append(rows, w.rows()...)
		}
	}
	return rows
}

// classOf returns the storage class. An older annotation takes precedence.
func classOf(o metav1.Object, class string) string {
	if old, ok := o.GetAnnotations()[v1.BetaStorageClassAnnotation]; ok {
		return old
	}
	return class
}
