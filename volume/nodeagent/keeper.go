package nodeagent

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/nodeagent/manifestdir"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// keeper makes manifests the wanted state of a node: it applies objects, places
// pods and declares them. One goroutine uses it.
type keeper struct {
	node   *volumemanager.Manager
	claims *claims
	show   func(volumemanager.VolumeStatus)
	say    func(string)

	pods     map[types.UID]*v1.Pod // wanted
	objects  *manifestObjects
	waiting  *waitingPods          // those that are not placed
	placed   map[types.UID]*v1.Pod // the versions that are
	declared *declaredPods
	replaced *replacedPods
	left     chan types.UID // torn down for good
}

func newKeeper(node *volumemanager.Manager, claims *claims, show func(volumemanager.VolumeStatus), say func(string), deleteHint func(volume.ObjectRef) string) *keeper {
	return &keeper{
		node: node, claims: claims, show: show, say: say,
		pods: make(map[types.UID]*v1.Pod), placed: make(map[types.UID]*v1.Pod), waiting: newWaitingPods(),
		objects:  newManifestObjects(claims, say, deleteHint),
		declared: newDeclaredPods(node, say), replaced: newReplacedPods(), left: make(chan types.UID),
	}
}

// apply makes want the wanted state. Objects come before the pods that need them.
// prune deletes the objects that are no longer wanted. apply reports whether a
// part of it must be retried.
func (k *keeper) apply(ctx context.Context, want *manifestdir.Contents) (again bool, err error) {
	pods := make(map[types.UID]*v1.Pod, len(want.Pods))
	for _, pod := range want.Pods {
		pods[pod.UID] = pod
	}
	for uid := range k.pods {
		if pods[uid] == nil {
			k.withdraw(ctx, uid)
		}
	}
	k.pods = pods
	if again, err = k.objects.apply(ctx, want); err != nil {
		return false, err
	}
	k.claims.start(ctx)
	for _, pod := range sortedPods(pods) {
		if err := k.place(ctx, pod); err != nil {
			return false, err
		}
	}
	k.replaceLeftovers(ctx)
	return again, nil
}

// withdraw tears down a pod that is in no manifest any more. The pod uses its
// claims until all of its volumes are torn down.
func (k *keeper) withdraw(ctx context.Context, uid types.UID) {
	k.node.DeletePod(uid)
	k.declared.forget(uid)
	delete(k.placed, uid)
	if w, waited := k.waiting.remove(uid); waited && !w.mounted {
		for _, row := range w.rows() {
			row.State, row.Err = volumemanager.StateUnmounted, nil
			k.show(row)
		}
	}
	k.follow(ctx, uid)
}

// follow notifies the loop when nothing is left of a pod.
func (k *keeper) follow(ctx context.Context, uid types.UID) { k.whenUnmounted(ctx, uid, k.left) }

func (k *keeper) whenUnmounted(ctx context.Context, uid types.UID, tell chan<- types.UID) {
	go func() {
		if k.node.WaitForUnmounted(ctx, uid) != nil {
			return // the command ends, or the pod is back
		}
		select {
		case tell <- uid:
		case <-ctx.Done():
		}
	}()
}

// forget releases the claims of a pod of which nothing is left, unless the pod is
// wanted again.
func (k *keeper) forget(ctx context.Context, uid types.UID) {
	if k.pods[uid] != nil {
		return
	}
	if err := k.claims.cluster.PodGone(ctx, uid); err != nil && ctx.Err() == nil {
		k.say(fmt.Sprintf("the claims of the pod with UID %s count as used, though it is gone: %v", uid, err))
	}
	k.claims.tell(anotherPod) // which may have had claims that were never written down
}

// complete says that all pods are known. Volumes of unknown pods may now be torn
// down; then their claims are released.
func (k *keeper) complete(ctx context.Context) {
	// They are collected first: a pod that goes at once has no rows any more.
	unknown := make(map[types.UID]bool)
	for _, v := range k.node.Explain() {
		if k.pods[v.PodUID] == nil {
			unknown[v.PodUID] = true
		}
	}
	k.node.PodsComplete(k.undeclared()...)
	for uid := range unknown {
		k.follow(ctx, uid)
	}
	k.claims.PodsComplete()
}

// prune deletes the objects that were in manifests and no longer are: see
// [manifestObjects.prune].
func (k *keeper) prune(ctx context.Context, want *manifestdir.Contents, taken map[volume.ObjectRef]bool) (kept, refused bool, err error) {
	return k.objects.prune(ctx, want, taken, k.held())
}

// held are the claims and volumes that are mounted for pods whose wanted version
// the node does not know.
func (k *keeper) held() map[volume.ObjectRef]bool {
	held := make(map[volume.ObjectRef]bool)
	uids := k.undeclared()
	if len(uids) == 0 {
		return held
	}
	for _, v := range k.node.Explain() {
		if slices.Contains(uids, v.PodUID) {
			held[volume.NewObjectRef("PersistentVolumeClaim", v.Claim.Namespace, v.Claim.Name)] = true
			held[volume.NewObjectRef("PersistentVolume", "", standalone.VolumeName(v))] = true
		}
	}
	return held
}

// undeclared are the wanted pods whose wanted version the node does not know,
// because it refuses them or must not get them now. Their mounts still have an
// owner.
func (k *keeper) undeclared() (uids []types.UID) {
	for _, pod := range sortedPods(k.pods) {
		if !k.declared.has(pod.UID) {
			uids = append(uids, pod.UID)
		}
	}
	return uids
}

func sortedPods(pods map[types.UID]*v1.Pod) []*v1.Pod {
	sorted := make([]*v1.Pod, 0, len(pods))
	for _, pod := range pods {
		sorted = append(sorted, pod)
	}
	slices.SortFunc(sorted, func(a, b *v1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return sorted
}

// noContainers is the role that reports a pod's containers, for an agent that
// runs none.
type noContainers struct{}

var _ volumemanager.PodContainers = noContainers{}

func (noContainers) ContainersGone(context.Context, types.UID) (bool, error) { return true, nil }

func (noContainers) WatchContainers(func(types.UID)) (stop func()) { return func() {} }
