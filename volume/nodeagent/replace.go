package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// replacedPods are the pods that are torn down and set up again in their wanted
// version, once for each version.
type replacedPods struct {
	underWay map[types.UID]bool
	last     map[types.UID]*v1.Pod // the version that a pod was replaced for last
	gone     chan types.UID        // torn down, to be set up again
}

func newReplacedPods() *replacedPods {
	return &replacedPods{underWay: make(map[types.UID]bool), last: make(map[types.UID]*v1.Pod), gone: make(chan types.UID)}
}

// begin records that a pod is replaced for this version. It returns false if that
// has begun before.
func (r *replacedPods) begin(pod *v1.Pod) bool {
	if r.underWay[pod.UID] || r.last[pod.UID] == pod {
		return false
	}
	r.underWay[pod.UID], r.last[pod.UID] = true, pod
	return true
}

// replaceLeftovers replaces the pods that have a volume mounted that they no
// longer want. A volume that podvol found and did not make does not count: a
// set-up may find that the pod wants it by another name. Otherwise it goes with
// the pod.
func (k *keeper) replaceLeftovers(ctx context.Context) {
	rows := k.node.Explain()
	for _, v := range rows {
		if !v.Wanted && !v.Found && k.pods[v.PodUID] != nil {
			k.replace(ctx, v.PodUID, rows)
		}
	}
}

// see replaces a pod that wants another source for a volume, unless the present
// one was found.
func (k *keeper) see(ctx context.Context, v volumemanager.VolumeStatus) {
	if errors.Is(v.Err, volumemanager.ErrReplaced) && v.Wanted && !v.Found {
		k.replace(ctx, v.PodUID, k.node.ExplainPod(v.PodUID))
	}
}

// replace tears a pod down and sets up its wanted version, as a kubelet restarts
// a changed static pod. It does so once for each version. It keeps two kinds of
// pods:
//
//   - A pod with a record that cannot be read: its teardown could not end, so it
//     would not come back.
//   - A pod that may not be declared now.
func (k *keeper) replace(ctx context.Context, uid types.UID, rows []volumemanager.VolumeStatus) {
	pod := k.pods[uid]
	unreadable := func(v volumemanager.VolumeStatus) bool { return v.PodUID == uid && isUnreadable(v) }
	if pod == nil || !k.declared.has(uid) || slices.ContainsFunc(rows, unreadable) || !k.replaced.begin(pod) {
		return
	}
	k.say(fmt.Sprintf("pod %s/%s has other volumes than before: it is torn down and set up again", pod.Namespace, pod.Name))
	k.node.DeletePod(uid)
	k.declared.withdraw(uid)
	delete(k.placed, uid)
	k.whenUnmounted(ctx, uid, k.replaced.gone)
}

func isUnreadable(v volumemanager.VolumeStatus) bool {
	_, unreadable := errors.AsType[*volumemanager.UnreadableRecordError](v.Err)
	return unreadable
}

// reapply makes the next apply apply and declare a replaced pod again. The pod no
// longer uses its former volumes. Its claims may have been refused meanwhile.
func (k *keeper) reapply(uid types.UID) {
	delete(k.replaced.underWay, uid)
	if pod := k.pods[uid]; pod != nil {
		k.objects.forget(volume.NewObjectRef("Pod", pod.Namespace, pod.Name))
	}
}
