package persistentvolume

import (
	"context"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// bind writes a binding: into the volume, which decides it, then into the
// claim, then into the phases of both, with what protects them. These four writes
// are as few as the API allows, for a status is written by itself. Whatever was
// done already is not written again. The volume is written only if it is still as
// given; committed is called when it was.
func (c *Controller) bind(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, committed func(*v1.PersistentVolume)) error {
	unlock, err := c.pairs.lock(ctx, pv.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.checkHeld(ctx, claim, pv); err != nil {
		return err
	}
	if !isBoundVolume(pv, claim) {
		if pv, err = c.writeVolume(ctx, pv, protectedVolume(boundVolume(pv, claim)), c.volumes.wrote); err != nil {
			return fmt.Errorf("bind volume %q: %w", pv.Name, err)
		}
	}
	committed(pv)
	if !isBoundClaim(claim, pv.Name) {
		next := protectedClaim(boundClaim(claim, pv.Name))
		if pv.Name == ProvisionedName(claim) {
			endProvisioning(next)
		}
		note := c.claims.wrote
		if isProvisioning(next) { // another volume, which is to be done away with
			note = c.claims.put
		}
		if claim, err = c.writeClaim(ctx, claim, next, note); err != nil {
			return fmt.Errorf("bind to volume %q: %w", pv.Name, err)
		}
	}
	if pvapi.AwaitsClaim(pv) { // no longer: from now on it goes with it
		next := pv.DeepCopy()
		delete(next.Annotations, pvapi.AwaitsClaimAnnotation)
		delete(next.Annotations, pvapi.LostClaimAnnotation)
		if pv, err = c.writeVolume(ctx, pv, next, c.volumes.wrote); err != nil {
			return fmt.Errorf("note that volume %q has its claim: %w", pv.Name, err)
		}
	}
	if pv, err = c.setVolumePhase(ctx, pv, v1.VolumeBound, ""); err != nil {
		return fmt.Errorf("mark volume %q as bound: %w", pv.Name, err)
	}
	if claim, err = c.setClaimStatus(ctx, claim, v1.ClaimBound, pv); err != nil {
		return fmt.Errorf("mark it as bound: %w", err)
	}
	if claim, err = c.recordGrowth(ctx, claim, pv); err != nil {
		return fmt.Errorf("record that it asks for more: %w", err)
	}
	if claim, err = c.recordModification(ctx, claim); err != nil {
		return fmt.Errorf("record that it asks for other attributes: %w", err)
	}
	if err := c.recordUse(ctx, claim); err != nil {
		return fmt.Errorf("record whether it is used: %w", err)
	}
	return nil
}

// checkHeld refuses a volume that was made for a claim and let go before its lock was
// taken here: nothing of the binding is written into it, which would show that it is
// not as it was, and its storage is to be found again by the claim.
func (c *Controller) checkHeld(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	if pv.Name != ProvisionedName(claim) || !isProvisioning(claim) || !isBoundVolume(pv, claim) {
		return nil
	}
	now, exists, err := c.volumes.get(ctx, types.NamespacedName{Name: pv.Name})
	if err == nil && (!exists || now.UID != pv.UID || c.isLetGo(now)) {
		err = fmt.Errorf("%w: volume %q has been let go", objects.ErrConflict, pv.Name)
	}
	return err
}

// isBoundVolume reports whether nothing is left to write of a binding into the
// volume; isBoundClaim, into the claim.
func isBoundVolume(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.UID == claim.UID && ref.Name == claim.Name && ref.Namespace == claim.Namespace &&
		ref.Kind == pvapi.KindClaim && ref.APIVersion == v1.SchemeGroupVersion.String() &&
		(pv.DeletionTimestamp != nil || slices.Contains(pv.Finalizers, volumeProtection))
}

func isBoundClaim(claim *v1.PersistentVolumeClaim, volumeName string) bool {
	return claim.Spec.VolumeName == volumeName && claim.Annotations[pvapi.AnnBindCompleted] == pvapi.AnnYes &&
		(claim.DeletionTimestamp != nil || slices.Contains(claim.Finalizers, claimProtection)) &&
		(volumeName != ProvisionedName(claim) || !isProvisioning(claim))
}

// updateVolume and updateClaim write only what differs, and return what is
// stored; on an error the object as it was. What is new is looked at again.
func (c *Controller) updateVolume(ctx context.Context, pv, next *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	if equality.Semantic.DeepEqual(pv, next) {
		return pv, nil
	}
	return c.writeVolume(ctx, pv, next, c.volumes.put)
}

func (c *Controller) updateClaim(ctx context.Context, claim, next *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	if equality.Semantic.DeepEqual(claim, next) {
		return claim, nil
	}
	return c.writeClaim(ctx, claim, next, c.claims.put)
}

func (c *Controller) writeVolume(ctx context.Context, pv, next *v1.PersistentVolume, note func(*v1.PersistentVolume) *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	stored, err := update(ctx, c.objects.Update, next)
	if err != nil {
		return pv, c.volumes.failed(ctx, next, err)
	}
	if pvapi.IsGone(stored) {
		c.volumes.gone(stored)
		c.queue.Add(pvapi.VolumeRef(stored.Name))
		return stored, nil
	}
	return note(stored), nil
}

func (c *Controller) writeClaim(ctx context.Context, claim, next *v1.PersistentVolumeClaim, note func(*v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	stored, err := update(ctx, c.objects.Update, next)
	if err != nil {
		return claim, c.claims.failed(ctx, next, err)
	}
	if pvapi.IsGone(stored) {
		c.queue.Add(pvapi.ClaimRef(pvapi.NameOf(stored)))
		return stored, nil
	}
	return note(stored), nil
}

// setVolumePhase writes a phase if it is another one, as setClaimStatus does; beside
// another controller, whose work that is, neither does anything. Nothing follows
// from it for claims.
func (c *Controller) setVolumePhase(ctx context.Context, pv *v1.PersistentVolume, phase v1.PersistentVolumePhase, message string) (*v1.PersistentVolume, error) {
	if pv.Status.Phase == phase && pv.Status.Message == message || c.isBeside() {
		return pv, nil
	}
	next := *pv
	if next.Status.Phase != phase {
		next.Status.LastPhaseTransitionTime = new(metav1.Now())
	}
	next.Status.Phase, next.Status.Message, next.Status.Reason = phase, message, ""
	stored, err := update(ctx, c.objects.UpdateStatus, &next)
	if err != nil {
		return pv, c.volumes.failed(ctx, &next, err)
	}
	return c.volumes.wrote(stored), nil
}

// setClaimStatus sets the phase and what a claim has of its volume, if any. The
// capacity of a claim that was bound before stays: a volume that has grown is
// larger than the file system in it may be. Beside another controller it does nothing.
func (c *Controller) setClaimStatus(ctx context.Context, claim *v1.PersistentVolumeClaim, phase v1.PersistentVolumeClaimPhase, pv *v1.PersistentVolume) (*v1.PersistentVolumeClaim, error) {
	next := *claim
	switch {
	case pv == nil:
		next.Status.AccessModes, next.Status.Capacity = nil, nil
	default:
		next.Status.AccessModes = pv.Spec.AccessModes
		next.Status.CurrentVolumeAttributesClassName = pv.Spec.VolumeAttributesClassName
		if next.Status.Phase != phase || len(next.Status.Capacity) == 0 {
			next.Status.Capacity = v1.ResourceList{v1.ResourceStorage: usableCapacity(pv)}
		}
	}
	next.Status.Phase = phase
	if isSameStatus(&claim.Status, &next.Status) || c.isBeside() {
		return claim, nil
	}
	stored, err := update(ctx, c.objects.UpdateStatus, &next)
	if err != nil {
		return claim, c.claims.failed(ctx, &next, err)
	}
	return c.claims.wrote(stored), nil
}

// usableCapacity is the size of the file system in a volume: one that was expanded
// for another claim may still be what it was, until a node has expanded it too.
// Kubernetes refuses to bind to what it cannot read; here the volume's own counts.
func usableCapacity(pv *v1.PersistentVolume) resource.Quantity {
	before, err := resource.ParseQuantity(pv.Annotations[pvapi.AnnPreResizeCapacity])
	if err != nil {
		return pv.Spec.Capacity[v1.ResourceStorage]
	}
	return before
}

// isSameStatus compares what setClaimStatus sets.
func isSameStatus(a, b *v1.PersistentVolumeClaimStatus) bool {
	return a.Phase == b.Phase && slices.Equal(a.AccessModes, b.AccessModes) &&
		ptr.Equal(a.CurrentVolumeAttributesClassName, b.CurrentVolumeAttributesClassName) &&
		maps.EqualFunc(a.Capacity, b.Capacity, func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
}
