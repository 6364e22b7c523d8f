package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// syncPod makes the claims of a pod's ephemeral volumes.
func (b *binder) syncPod(ctx context.Context, name types.NamespacedName) error {
	pod, exists, err := b.cluster.pods.Get(ctx, name)
	if err != nil || !exists || pod.DeletionTimestamp != nil {
		return err
	}
	var errs []error
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
			errs = append(errs, b.makeClaim(ctx, pod, v))
		}
	}
	return errors.Join(errs...)
}

// makeClaim makes the claim of an ephemeral volume, which belongs to the pod.
// One of the same name that does not is never used, so that its data is not
// shown to this pod.
func (b *binder) makeClaim(ctx context.Context, pod *v1.Pod, v *v1.Volume) error {
	name, _ := claimbinding.ClaimOf(pod, v)
	stored, exists, err := b.cluster.claims.Get(ctx, name)
	switch {
	case err != nil:
		return err
	case exists && stored.DeletionTimestamp == nil && !metav1.IsControlledBy(stored, pod):
		b.events.EventOnceFor(volumeOf(pod, v.Name), pod, v1.EventTypeWarning, reasonFailedBinding,
			fmt.Sprintf("ephemeral volume %s: PVC %s was not created for the pod; delete it, or rename the volume", v.Name, name), "")
		return nil
	case exists:
		b.events.Forget(volumeOf(pod, v.Name))
		return nil // once a claim is gone its pod is enqueued
	}
	template := v.Ephemeral.VolumeClaimTemplate.DeepCopy()
	claim := &v1.PersistentVolumeClaim{Spec: template.Spec}
	claim.Namespace, claim.Name = name.Namespace, name.Name
	claim.Labels, claim.Annotations = maps.Clone(template.Labels), maps.Clone(template.Annotations)
	claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, v1.SchemeGroupVersion.WithKind(pvapi.KindPod))}
	claim.Finalizers = []string{claimProtection}
	made, err := update(ctx, b.cluster.objects.Create, claim)
	if errors.Is(err, objects.ErrExists) { // the cache has not heard of it yet
		_, _, err = b.cluster.claims.GetLive(ctx, name)
		return err
	}
	if err != nil {
		if ctx.Err() == nil {
			b.events.EventOnceFor(volumeOf(pod, v.Name), pod, v1.EventTypeWarning, reasonFailedBinding, fmt.Sprintf("ephemeral volume %s: create PVC %s: %v", v.Name, name, err), "")
		}
		return fmt.Errorf("make the claim of ephemeral volume %q: %w", v.Name, err)
	}
	b.events.Forget(volumeOf(pod, v.Name))
	b.cluster.claims.Put(made)
	return nil
}

// deleteOrphan deletes a claim whose pod is gone, as a cluster's garbage
// collector does too. It reports whether it has.
func (b *binder) deleteOrphan(ctx context.Context, claim *v1.PersistentVolumeClaim) (bool, error) {
	owner := metav1.GetControllerOf(claim)
	if owner == nil || owner.Kind != pvapi.KindPod || owner.APIVersion != v1.SchemeGroupVersion.String() || claim.DeletionTimestamp != nil || !b.cluster.podsComplete() {
		return false, nil
	}
	name := types.NamespacedName{Namespace: claim.Namespace, Name: owner.Name}
	pod, exists, err := b.cluster.pods.Get(ctx, name)
	if err == nil && (!exists || pod.UID != owner.UID) {
		pod, exists, err = b.cluster.pods.GetLive(ctx, name)
	}
	if err != nil || exists && pod.UID == owner.UID {
		return false, err
	}
	if err := b.cluster.objects.Delete(ctx, pvapi.ClaimRef(pvapi.NameOf(claim)), objects.Preconditions{UID: claim.UID}); err != nil {
		return true, pvapi.IgnoreMissing(err)
	}
	_, _, err = b.cluster.claims.GetLive(ctx, pvapi.NameOf(claim)) // to let it go, whether or not the cache has heard of it
	return true, err
}
