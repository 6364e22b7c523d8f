package persistentvolume

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// syncVolume does the next steps for one volume, which no other call writes meanwhile.
func (b *binder) syncVolume(ctx context.Context, name string) error {
	pv, exists, err := b.cluster.volumes.Get(ctx, types.NamespacedName{Name: name})
	if err != nil || !exists {
		return err
	}
	if b.isWanted(pv) {
		return nil
	}
	defer b.table.EnqueueClaimFor(name)
	if pv.DeletionTimestamp == nil {
		if pv, err = b.reclaimer.protectVolume(ctx, pv); err != nil {
			return err
		}
	}
	if err := b.syncVolumeOfClaim(ctx, pv); err != nil {
		return err
	}
	pv, exists, err = b.cluster.volumes.Get(ctx, types.NamespacedName{Name: name})
	if err != nil || !exists || pv.DeletionTimestamp == nil {
		return err
	}
	_, err = b.reclaimer.protectVolume(ctx, pv)
	return pvapi.IgnoreMissing(err)
}

// isWanted reports whether a volume that no claim has is about to be taken: what
// binds it writes all of it, or gives it back. A claim is enqueued for it first: one that
// reserves it meanwhile would be seen by neither the other way round.
func (b *binder) isWanted(pv *v1.PersistentVolume) bool {
	return pv.Spec.ClaimRef == nil && pv.DeletionTimestamp == nil && (b.table.EnqueueClaimFor(pv.Name) || b.table.IsAssumed(pv.Name))
}

// syncVolumeOfClaim does what the claim asks for that the volume means.
func (b *binder) syncVolumeOfClaim(ctx context.Context, pv *v1.PersistentVolume) error {
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		if detail := index.Unusable(pv); detail != "" {
			return b.refuseVolume(ctx, pv, detail)
		}
		_, err := b.status.setVolumePhase(ctx, pv, v1.VolumeAvailable, "")
		return err
	}
	claim, err := b.cluster.claimOf(ctx, ref)
	switch {
	case err != nil:
		return err
	case pvapi.AwaitsClaim(pv) && (claim == nil || claim.Spec.VolumeName != "" && claim.Spec.VolumeName != pv.Name):
		_, err := b.status.setVolumePhase(ctx, pv, v1.VolumeAvailable, pvapi.LostClaimMessage(pv))
		return err
	case claim == nil:
		return b.reclaimer.release(ctx, pv)
	case claim.Spec.VolumeName == "":
		b.checkMode(pv, claim)
		return nil // the claim's own work binds it
	case claim.Spec.VolumeName == pv.Name:
		_, err := b.status.setVolumePhase(ctx, pv, v1.VolumeBound, "")
		return err
	}
	if pv.Annotations[pvapi.AnnProvisionedBy] != "" && pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete {
		return b.reclaimer.release(ctx, pv) // it was made for this claim alone
	}
	return b.reclaimer.unbind(ctx, pv)
}

// refuseVolume is for a volume that no claim gets as it is.
func (b *binder) refuseVolume(ctx context.Context, pv *v1.PersistentVolume, detail string) error {
	message := "no claim can have it: " + detail + "; correct it"
	b.events.EventOnce(pv, v1.EventTypeWarning, reasonInvalidVolume, message, "")
	_, err := b.status.setVolumePhase(ctx, pv, v1.VolumePending, message)
	return err
}

// checkMode tells of a claim that can never have the volume made for it.
func (b *binder) checkMode(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) {
	if have, want := pvapi.VolumeMode(pv.Spec.VolumeMode), pvapi.VolumeMode(claim.Spec.VolumeMode); have != want {
		b.events.EventOnce(pv, v1.EventTypeWarning, reasonVolumeMismatch,
			fmt.Sprintf("Cannot bind PersistentVolume to requested PersistentVolumeClaim %q due to incompatible volumeMode", claim.Name),
			fmt.Sprintf("the volume's is %s, the claim's %s", have, want))
	}
}
