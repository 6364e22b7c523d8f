package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// keeper makes what manifests say the wish of a node: objects applied, pods
// placed and declared. One goroutine uses it.
type keeper struct {
	node    *volumemanager.Manager
	storage *storage
	out     *rowStream
	say     func(string)

	applied map[volume.ObjectRef]metav1.Object // as the manifests had them last
	faults  map[volume.ObjectRef]string        // said about objects that are not as they are wanted
	kept    map[volume.ObjectRef]bool          // said to be in no manifest
	pods    map[types.UID]*v1.Pod              // wanted
	waiting *waitingPods                       // those that are not placed
	placed  map[types.UID]*v1.Pod              // the versions that are
	refused map[types.UID]*v1.Pod              // the versions that the node has refused

	// declared are the pods that the node knows as they are wanted. Of any other
	// it only shows what was, or what another version wants: that is no reason
	// to tear anything down.
	declared map[types.UID]bool

	replacing map[types.UID]bool
	replaced  map[types.UID]*v1.Pod // the version that a pod was replaced for last
	gone      chan types.UID        // torn down, to be set up again
	left      chan types.UID        // torn down for good
}

func newKeeper(node *volumemanager.Manager, storage *storage, out *rowStream, say func(string)) *keeper {
	return &keeper{
		node: node, storage: storage, out: out, say: say,
		applied: make(map[volume.ObjectRef]metav1.Object), faults: make(map[volume.ObjectRef]string), pods: make(map[types.UID]*v1.Pod),
		waiting: newWaitingPods(), placed: make(map[types.UID]*v1.Pod),
		refused: make(map[types.UID]*v1.Pod), declared: make(map[types.UID]bool),
		replacing: make(map[types.UID]bool), replaced: make(map[types.UID]*v1.Pod), gone: make(chan types.UID), left: make(chan types.UID),
	}
}

// apply takes over what is wanted: objects come before the pods that need them.
// What is wanted no more is deleted by prune. It reports whether some of it has
// to be tried again.
func (k *keeper) apply(ctx context.Context, want *contents) (again bool, err error) {
	pods := make(map[types.UID]*v1.Pod, len(want.pods))
	for _, pod := range want.pods {
		pods[pod.UID] = pod
	}
	for uid := range k.pods {
		if pods[uid] == nil {
			k.withdraw(ctx, uid)
		}
	}
	k.pods = pods
	if again, err = k.applyObjects(ctx, want); err != nil {
		return false, err
	}
	k.storage.start(ctx)
	for _, pod := range sortedPods(pods) {
		if err := k.place(ctx, pod); err != nil {
			return false, err
		}
	}
	k.replaceLeftovers(ctx)
	return again, nil
}

// withdraw has a pod go that no manifest has any more. It uses its claims until
// all of its volumes are torn down.
func (k *keeper) withdraw(ctx context.Context, uid types.UID) {
	k.node.DeletePod(uid)
	delete(k.refused, uid)
	delete(k.declared, uid)
	delete(k.placed, uid)
	if w, waited := k.waiting.remove(uid); waited && !w.mounted {
		for _, row := range w.rows() {
			row.State, row.Err = volumemanager.StateUnmounted, nil
			k.out.put(row)
		}
	}
	k.follow(ctx, uid)
}

// follow has the loop told when nothing is left of a pod.
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

// forget lets go of the claims of a pod of which nothing is left, unless it is
// wanted again.
func (k *keeper) forget(ctx context.Context, uid types.UID) {
	if k.pods[uid] != nil {
		return
	}
	if err := k.storage.PodGone(ctx, uid); err != nil && ctx.Err() == nil {
		k.say(fmt.Sprintf("the claims of the pod with UID %s count as used, though it is gone: %v", uid, err))
	}
	k.storage.tell(anotherPod) // which may have had claims that were never written down
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

// replaceLeftovers replaces the pods that have a volume mounted that they do
// not want any more. What was found and not made by podvol is none: a set-up may
// find that the pod wants it by another name, and else it goes with the pod.
func (k *keeper) replaceLeftovers(ctx context.Context) {
	rows := k.node.Explain()
	for _, v := range rows {
		if !v.Wanted && !v.Found && k.pods[v.PodUID] != nil {
			k.replace(ctx, v.PodUID, rows)
		}
	}
}

// see replaces a pod that wants another source for a volume, unless what is
// there was found.
func (k *keeper) see(ctx context.Context, v volumemanager.VolumeStatus) {
	if _, other := errors.AsType[*volumemanager.ReplacedError](v.Err); other && v.Wanted && !v.Found {
		k.replace(ctx, v.PodUID, k.node.ExplainPod(v.PodUID))
	}
}

// replace tears a pod down and sets it up again as it is wanted then, as a
// kubelet restarts a static pod that has changed; once for each version. A pod
// with a record that cannot be read is kept: it could not be torn down to its
// end, and so would not come back. So is one that may not be declared now.
func (k *keeper) replace(ctx context.Context, uid types.UID, rows []volumemanager.VolumeStatus) {
	pod := k.pods[uid]
	if pod == nil || !k.declared[uid] || k.replacing[uid] || k.replaced[uid] == pod || slices.ContainsFunc(rows, func(v volumemanager.VolumeStatus) bool {
		return v.PodUID == uid && isUnreadable(v)
	}) {
		return
	}
	k.replacing[uid], k.replaced[uid] = true, pod
	k.say(fmt.Sprintf("pod %s/%s has other volumes than before: it is torn down and set up again", pod.Namespace, pod.Name))
	k.node.DeletePod(uid)
	delete(k.declared, uid)
	delete(k.placed, uid)
	k.whenUnmounted(ctx, uid, k.gone)
}

func isUnreadable(v volumemanager.VolumeStatus) bool {
	_, unreadable := errors.AsType[*volumemanager.UnreadableRecordError](v.Err)
	return unreadable
}

// renew has a replaced pod applied and declared again, by the next apply: it uses
// no more what it had mounted, and its claims may have been refused meanwhile.
func (k *keeper) renew(uid types.UID) {
	delete(k.replacing, uid)
	if pod := k.pods[uid]; pod != nil {
		delete(k.applied, volume.NewObjectRef("Pod", pod.Namespace, pod.Name))
	}
}

// declare declares a pod. That one is refused is no reason to end for all others;
// it is said, once for each version.
func (k *keeper) declare(pod *v1.Pod) error {
	err := k.node.PutPod(pod)
	if err == nil {
		delete(k.refused, pod.UID)
		k.declared[pod.UID] = true
		return nil
	}
	delete(k.declared, pod.UID)
	if errors.Is(err, volumemanager.ErrStopped) {
		return err
	}
	if k.refused[pod.UID] != pod {
		k.refused[pod.UID] = pod
		k.say(fmt.Sprintf("pod %s/%s is refused, and its volumes stay as they are: %v", pod.Namespace, pod.Name, err))
	}
	return nil
}

// undeclared are the pods that are wanted, and of which the node does not know how:
// what one that it refuses, or must not be told of now, has mounted is not nobody's.
func (k *keeper) undeclared() (uids []types.UID) {
	for _, pod := range sortedPods(k.pods) {
		if !k.declared[pod.UID] {
			uids = append(uids, pod.UID)
		}
	}
	return uids
}

// noContainers is the role that knows about containers, played for a program
// that runs none.
type noContainers struct{}

var _ volumemanager.PodContainers = noContainers{}

func (noContainers) ContainersGone(context.Context, types.UID) (bool, error) { return true, nil }

func (noContainers) WatchContainers(func(types.UID)) (stop func()) { return func() {} }
