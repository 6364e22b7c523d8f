package persistentvolume

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
)

// Finalizers that keep claims and volumes that are in use.
const (
	claimProtection  = "kubernetes.io/pvc-protection"
	volumeProtection = "kubernetes.io/pv-protection"
)

// protectedClaim returns a copy that is protected from now on, unless it is being deleted; all
// else it shares.
func protectedClaim(claim *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim {
	next := *claim
	next.Finalizers = protected(claim, claimProtection)
	return &next
}

func protected(object metav1.Object, finalizer string) []string {
	finalizers := object.GetFinalizers()
	if object.GetDeletionTimestamp() != nil {
		return finalizers
	}
	return withOne(finalizers, finalizer)
}

func withOne(finalizers []string, one string) []string {
	if slices.Contains(finalizers, one) {
		return finalizers
	}
	return append(slices.Clip(finalizers), one)
}

// usesClaim reports whether a pod uses a claim, by Kubernetes' rules: one that
// is not on a node yet does not, for no node starts a pod whose claim is being
// deleted. One that has ended does, except with a claim of its own that it waits
// for to go itself.
func usesClaim(pod *v1.Pod, claim *v1.PersistentVolumeClaim) bool {
	if pod.Spec.NodeName == "" {
		return false
	}
	return slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool {
		name, ok := claimbinding.ClaimOf(pod, &v)
		return ok && name == pvapi.NameOf(claim) && (v.Ephemeral == nil || !isShutDown(pod) && metav1.IsControlledBy(claim, pod))
	})
}

// isShutDown reports whether the node is done with a pod, or was not asked.
func isShutDown(pod *v1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

// protectVolume keeps a volume that is not being deleted, or lets one go that is
// not bound. What deletes its storage is let go of where that is not to be.
func (r *reclaimer) protectVolume(ctx context.Context, pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	if pv.DeletionTimestamp == nil {
		finalizers := r.withDeletion(pv, protected(pv, volumeProtection))
		by := pv.Annotations[pvapi.AnnProvisionedBy]
		driver := r.driverOf(by)
		migrated := driver != by && pv.Annotations[pvapi.AnnMigratedTo] != driver
		if !migrated && slices.Equal(finalizers, pv.Finalizers) {
			return pv, nil
		}
		next := *pv
		next.Finalizers = finalizers
		if migrated {
			next.Annotations = pvapi.With(pv.Annotations, pvapi.AnnMigratedTo, driver)
		}
		return r.writer.UpdateVolume(ctx, pv, &next)
	}
	if pv.Status.Phase == v1.VolumeBound || !r.cluster.podsComplete() {
		return pv, nil
	}
	next := pv.DeepCopy()
	next.Finalizers = pvapi.Without(next.Finalizers, volumeProtection)
	if slices.Contains(next.Finalizers, pvapi.DeletionFinalizer) {
		stays, err := r.storageStays(ctx, pv)
		if err != nil {
			return pv, err
		}
		if stays {
			next.Finalizers = pvapi.Without(next.Finalizers, pvapi.DeletionFinalizer)
		}
	}
	return r.writer.UpdateVolume(ctx, pv, next)
}

// withDeletion returns finalizers with, or without, the one that lets a volume's
// storage go before the volume, by its policy now. Kubernetes (KEP-2644) does so
// for what its own plugins have provisioned, and so it is done here. Once the
// storage has gone nothing is added any more: else, where the API does not let
// the volume go, each of the two writes would ask for the other one, without a
// pause.
func (r *reclaimer) withDeletion(pv *v1.PersistentVolume, finalizers []string) []string {
	provisioner := pv.Annotations[pvapi.AnnProvisionedBy]
	if provisioner == "" || r.plugins == nil {
		return finalizers
	}
	if _, err := r.plugins.FindPluginByName(provisioner); err != nil {
		return finalizers
	}
	if pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete || pvapi.IsOfDriver(pv, pvapi.PluginsOf(r.plugins)) {
		return pvapi.Without(finalizers, pvapi.DeletionFinalizer)
	}
	if r.operations.Status(releaseKey(pv)).State == operation.Done {
		return finalizers
	}
	return withOne(finalizers, pvapi.DeletionFinalizer)
}

// storageStays reports whether a volume that is being deleted is let go without
// its storage: if the policy says so, if no claim has left it, or if it was made
// for a claim that has not got it. That claim finds its storage again.
func (r *reclaimer) storageStays(ctx context.Context, pv *v1.PersistentVolume) (bool, error) {
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.UID == "" || pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete || pvapi.IsOfDriver(pv, pvapi.PluginsOf(r.plugins)) {
		return true, nil
	}
	claim, exists, err := r.cluster.claims.GetLive(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name})
	return err == nil && exists && claim.UID == ref.UID && claim.DeletionTimestamp == nil && claim.Spec.VolumeName == "" &&
		isProvisioning(claim) && ProvisionedName(claim) == pv.Name, err
}

// hasTerminalPhase is less than [podstate.HasEnded]: as with Kubernetes' scheduler and
// its condition Unused, the phase alone says whether a pod counts for placing others
// and for that condition, though its node may not have let go of its volumes. What
// destroys data, or gives it to another pod on a node, does not go by it.
func hasTerminalPhase(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}
