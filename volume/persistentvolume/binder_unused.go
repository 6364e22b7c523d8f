package persistentvolume

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// conditionUnused is PersistentVolumeClaimUnused (KEP-5541), which k8s.io/api has from
// 0.36 on.
const conditionUnused v1.PersistentVolumeClaimConditionType = "Unused"

// recordUse keeps the condition Unused of a claim, if that is wanted: true once no pod
// names it that has not ended, since when its time says. One that is not bound or is
// being deleted keeps what it has.
func (b *binder) recordUse(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if !b.unusedCondition || claim.DeletionTimestamp != nil || claim.Status.Phase != v1.ClaimBound {
		return nil
	}
	now := v1.PersistentVolumeClaimCondition{Type: conditionUnused, Status: v1.ConditionTrue,
		Reason: "NoPodsUsingPVC", Message: "No pods are currently referencing this PVC"}
	mayUseIt := func(pod *v1.Pod) bool { return mayUse(pod, claim) }
	if slices.ContainsFunc(b.cluster.users.of(pvapi.NameOf(claim)), mayUseIt) {
		now.Status, now.Reason, now.Message = v1.ConditionFalse, "PodUsingPVC", "A pod is currently referencing this PVC"
	} else if !b.cluster.podsComplete() {
		return nil // one may not have been announced yet
	}
	if slices.ContainsFunc(claim.Status.Conditions, func(had v1.PersistentVolumeClaimCondition) bool {
		return had.Type == conditionUnused && had.Status == now.Status
	}) {
		return nil
	}
	if now.Status == v1.ConditionTrue {
		// Pods are worked on side by side: one that is gone may be noted before its
		// successor, which the cache has by then. The claim is enqueued for it again.
		pods, err := objects.List[*v1.Pod](ctx, b.cluster.objects, pvapi.KindPod, claim.Namespace)
		if err != nil || slices.ContainsFunc(pods, mayUseIt) {
			return err
		}
	}
	now.LastTransitionTime = metav1.Now()
	_, err := b.writer.ChangeStatus(ctx, claim, func(s *v1.PersistentVolumeClaimStatus) {
		s.Conditions = append(pvapi.WithoutConditions(s.Conditions, conditionUnused), now)
	})
	return err
}

// mayUse reports whether a pod names a claim and has not ended, by the rules of
// Kubernetes (pkg/volume/util IsPodTerminated). Unlike for [usesClaim], one that is not
// on a node yet counts.
func mayUse(pod *v1.Pod, claim *v1.PersistentVolumeClaim) bool {
	if hasTerminalPhase(pod) || pod.DeletionTimestamp != nil && runsNothing(pod) {
		return false
	}
	return slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool {
		name, ok := claimbinding.ClaimOf(pod, &v)
		return ok && name == pvapi.NameOf(claim) && (v.Ephemeral == nil || metav1.IsControlledBy(claim, pod))
	})
}

func runsNothing(pod *v1.Pod) bool {
	runs := func(s v1.ContainerStatus) bool { return s.State.Terminated == nil && s.State.Waiting == nil }
	status := &pod.Status
	return !slices.ContainsFunc(status.InitContainerStatuses, runs) && !slices.ContainsFunc(status.ContainerStatuses, runs) &&
		!slices.ContainsFunc(status.EphemeralContainerStatuses, runs)
}
