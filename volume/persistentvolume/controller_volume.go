package persistentvolume

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// syncVolume does the next steps for one volume, whose lock is held.
func (c *Controller) syncVolume(ctx context.Context, name string) error {
	pv, exists, err := c.volumes.get(ctx, types.NamespacedName{Name: name})
	if err != nil || !exists {
		return err
	}
	if c.isWanted(pv) {
		return nil
	}
	defer c.offer(name)
	if pv.DeletionTimestamp == nil {
		if pv, err = c.protectVolume(ctx, pv); err != nil {
			return err
		}
	}
	if err := c.settleVolume(ctx, pv); err != nil {
		return err
	}
	pv, exists, err = c.volumes.get(ctx, types.NamespacedName{Name: name})
	if err != nil || !exists || pv.DeletionTimestamp == nil {
		return err
	}
	_, err = c.protectVolume(ctx, pv)
	return pvapi.IgnoreMissing(err)
}

// isWanted reports whether a volume that nobody has is about to be taken: what
// binds it writes all of it, or gives it back. It is offered first: a claim that
// reserves it meanwhile would be seen by neither the other way round.
func (c *Controller) isWanted(pv *v1.PersistentVolume) bool {
	return pv.Spec.ClaimRef == nil && pv.DeletionTimestamp == nil && (c.offer(pv.Name) || c.index.IsReserved(pv.Name))
}

// settleVolume does what the claim asks for that the volume means.
func (c *Controller) settleVolume(ctx context.Context, pv *v1.PersistentVolume) error {
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		if detail := index.Unusable(pv); detail != "" {
			return c.refuseVolume(ctx, pv, detail)
		}
		_, err := c.setVolumePhase(ctx, pv, v1.VolumeAvailable, "")
		return err
	}
	claim, err := c.claimOf(ctx, ref)
	switch {
	case err != nil:
		return err
	case pvapi.AwaitsClaim(pv) && (claim == nil || claim.Spec.VolumeName != "" && claim.Spec.VolumeName != pv.Name):
		_, err := c.setVolumePhase(ctx, pv, v1.VolumeAvailable, pvapi.LostClaimMessage(pv))
		return err
	case claim == nil:
		return c.release(ctx, pv)
	case claim.Spec.VolumeName == "":
		c.checkMode(pv, claim)
		return nil // the claim's own work binds it
	case claim.Spec.VolumeName == pv.Name:
		_, err := c.setVolumePhase(ctx, pv, v1.VolumeBound, "")
		return err
	}
	if pv.Annotations[pvapi.AnnProvisionedBy] != "" && pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete {
		return c.release(ctx, pv) // it was made for this claim alone
	}
	return c.unbind(ctx, pv)
}

// refuseVolume is for a volume that no claim gets as it is.
func (c *Controller) refuseVolume(ctx context.Context, pv *v1.PersistentVolume, detail string) error {
	message := "no claim can have it: " + detail + "; correct it"
	c.events.is(pv, v1.EventTypeWarning, reasonInvalidVolume, message, "")
	_, err := c.setVolumePhase(ctx, pv, v1.VolumePending, message)
	return err
}

// claimOf returns the claim that a volume means, by UID, or nil if it is gone.
// Only the API itself can say that.
func (c *Controller) claimOf(ctx context.Context, ref *v1.ObjectReference) (*v1.PersistentVolumeClaim, error) {
	name := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	claim, exists, err := c.claims.get(ctx, name)
	if err == nil && (!exists || claim.UID != ref.UID) {
		claim, exists, err = c.claims.getLive(ctx, name)
	}
	if err != nil || !exists || claim.UID != ref.UID {
		return nil, err
	}
	return claim, nil
}

// checkMode tells of a claim that can never have the volume made for it.
func (c *Controller) checkMode(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) {
	if have, want := pvapi.VolumeMode(pv.Spec.VolumeMode), pvapi.VolumeMode(claim.Spec.VolumeMode); have != want {
		c.events.is(pv, v1.EventTypeWarning, reasonVolumeMismatch,
			fmt.Sprintf("Cannot bind PersistentVolume to requested PersistentVolumeClaim %q due to incompatible volumeMode", claim.Name),
			fmt.Sprintf("the volume's is %s, the claim's %s", have, want))
	}
}

// release is for a volume whose claim has gone, or has another volume.
func (c *Controller) release(ctx context.Context, pv *v1.PersistentVolume) error {
	if phase := pv.Status.Phase; phase != v1.VolumeReleased && phase != v1.VolumeFailed {
		var err error
		if pv, err = c.setVolumePhase(ctx, pv, v1.VolumeReleased, ""); err != nil {
			return err
		}
	}
	return c.reclaim(ctx, pv)
}

// unbind makes a volume available again in which no claim has data: it was
// emptied, or its claim has had another one from the start. What the controller
// chose is free then, what the user chose waits for a claim of that name.
func (c *Controller) unbind(ctx context.Context, pv *v1.PersistentVolume) error {
	next := pv.DeepCopy()
	if _, ours := next.Annotations[pvapi.AnnBoundByController]; ours {
		next.Spec.ClaimRef = nil
		delete(next.Annotations, pvapi.AnnBoundByController)
	} else {
		next.Spec.ClaimRef.UID = ""
		next.Spec.ClaimRef.ResourceVersion = ""
	}
	pv, err := c.updateVolume(ctx, pv, next)
	if err != nil {
		return err
	}
	_, err = c.setVolumePhase(ctx, pv, v1.VolumeAvailable, "")
	return err
}
