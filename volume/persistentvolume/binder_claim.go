package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
	"github.com/podvol/podvol/volume/persistentvolume/internal/reservation"
)

// syncClaim does the next steps for one claim.
func (b *binder) syncClaim(ctx context.Context, name types.NamespacedName) (err error) {
	b.unbound.markStale(name)
	defer func() { b.unbound.synced(name, err) }()
	// A candidate that it does not take is for the next claim.
	for _, pv := range b.table.Candidates(name) {
		defer b.table.Release(pv, name)
	}
	claim, exists, err := b.cluster.claims.Get(ctx, name)
	if err != nil {
		return err
	}
	if !exists {
		b.waiting.Done(name)
		return nil
	}
	if deleted, err := b.deleteOrphan(ctx, claim); err != nil || deleted {
		return err // which enqueues it again
	}
	_, bound := claim.Annotations[pvapi.AnnBindCompleted]
	if bound || claim.DeletionTimestamp != nil { // else it is with the first that is written
		if claim, err = b.status.protectClaim(ctx, claim); err != nil {
			return pvapi.IgnoreMissing(err)
		}
		if pvapi.IsGone(claim) {
			return nil // which enqueues it again
		}
	}
	if bound {
		b.waiting.Done(name)
		return b.syncBoundClaim(ctx, claim)
	}
	return b.syncUnboundClaim(ctx, claim)
}

// syncUnboundClaim looks for a volume.
func (b *binder) syncUnboundClaim(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if claim.DeletionTimestamp != nil {
		b.waiting.Done(pvapi.NameOf(claim))
		if isProvisioning(claim) {
			return b.provisioner.finishProvisioning(ctx, claim)
		}
		return nil
	}
	if class := b.classToGive(claim); class != "" {
		// Only after it has found no volume without class. Meanwhile it waits for
		// one of that class, as which it was entered when it came.
		if reserved, err := b.table.Reserve(index.Wanted{Claim: claim}); err == nil {
			return b.take(ctx, claim, reserved)
		}
		var err error
		if claim, err = b.giveClass(ctx, claim, class); err != nil {
			return err
		}
	}
	class, err := b.cluster.classOf(ctx, claim)
	if err != nil {
		return err
	}
	wanted, err := b.cluster.here(ctx, wantedNow(claim, class))
	if err != nil {
		return err
	}
	b.waiting.Add(wanted)
	if bad := checkClass(class); bad != nil {
		return b.leavePending(ctx, claim, &index.UnboundError{Claim: pvapi.NameOf(claim), Err: bad})
	}
	reserved, err := b.table.Reserve(wanted)
	if errors.Is(err, index.ErrReserved) {
		b.unbound.set(pvapi.NameOf(claim), err)
		return nil // by the placement of its pod, after which the table enqueues it
	}
	if unbound, ok := errors.AsType[*index.UnboundError](err); ok {
		return b.handleUnbound(ctx, claim, class, unbound)
	}
	if err != nil {
		return err
	}
	return b.take(ctx, claim, reserved)
}

// take binds a claim to its reserved volume.
func (b *binder) take(ctx context.Context, claim *v1.PersistentVolumeClaim, reserved *reservation.Entry) error {
	b.waiting.Pause(pvapi.NameOf(claim))
	if err := b.bind(ctx, claim, reserved.Volume(), reserved.Assume); err != nil {
		b.table.Retry(reserved)
		return err
	}
	b.waiting.Done(pvapi.NameOf(claim))
	return nil
}

// wantedNow says what a claim can have by itself. If it waits for its consumer,
// or its storage is being made, its volume is chosen for it; a bad class gives it
// none.
func wantedNow(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) index.Wanted {
	return index.Wanted{Claim: claim, Delayed: waitsForConsumer(class) || isProvisioning(claim) || checkClass(class) != nil}
}

// classToGive is the default class for a claim that has none, or "". One that
// names its volume is given none: the volume's class is not known to be that one.
func (b *binder) classToGive(claim *v1.PersistentVolumeClaim) string {
	if !pvapi.WantsDefaultClass(claim) || claim.Spec.VolumeName != "" {
		return ""
	}
	return DefaultClass(b.cluster.classes.All())
}

// giveClass writes the default class into a claim, as Kubernetes does, also if
// the class came later.
func (b *binder) giveClass(ctx context.Context, claim *v1.PersistentVolumeClaim, class string) (*v1.PersistentVolumeClaim, error) {
	next := protectedClaim(claim)
	next.Spec.StorageClassName = &class
	return b.writer.updateClaim(ctx, claim, next)
}

// handleUnbound is for a claim for which there is no volume: one is made where its
// class does so, and for a class that waits once a node is selected.
func (b *binder) handleUnbound(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, why *index.UnboundError) error {
	_, invalid := errors.AsType[*volume.InvalidSpecError](why)
	waits := waitsForConsumer(class) && claim.Annotations[annSelectedNode] == ""
	if invalid || waits || why.Volume != "" || !canBeFilled(claim, class, b.provisioner.fills) {
		return b.leavePending(ctx, claim, why)
	}
	if inVain, err := b.provisioner.forgetGoneNode(ctx, claim, class); err != nil || inVain {
		return err // which enqueues it again
	}
	handled, err := b.provisioner.provision(ctx, claim, class, why)
	if err != nil || handled {
		return err
	}
	return b.leavePending(ctx, claim, withoutClass(claim, b.provisioner.explainOnNode(ctx, claim, why)))
}

// withoutClass adds to why a claim has found no volume that nothing makes one for
// it, as it names no class and none is the default.
func withoutClass(claim *v1.PersistentVolumeClaim, why *index.UnboundError) *index.UnboundError {
	if !pvapi.WantsDefaultClass(claim) || why.Err != claimbinding.ErrUnbound {
		return why
	}
	alone := *why
	alone.Err = fmt.Errorf("%w: it names no storage class, and there is no default one: name one, mark one as the default, or create a PersistentVolume without class", why.Err)
	return &alone
}

// leavePending says why a claim has no volume.
func (b *binder) leavePending(ctx context.Context, claim *v1.PersistentVolumeClaim, why *index.UnboundError) error {
	return b.pending.leave(ctx, claim, b.failedBefore(claim, why), pendingEvent(claim, why))
}

// failedBefore returns, of a claim that waits for a node again, what went wrong
// with making its volume on the last one.
func (b *binder) failedBefore(claim *v1.PersistentVolumeClaim, why *index.UnboundError) error {
	if !errors.Is(why, index.ErrWaitsForConsumer) {
		return why
	}
	if now := b.operations.Status(provisionKey(claim)); now.State == operation.Failed && now.Failure != nil {
		return failedToProvision(claim, now.Failure)
	}
	return why
}

func pendingEvent(claim *v1.PersistentVolumeClaim, why *index.UnboundError) event {
	_, invalid := errors.AsType[*volume.InvalidSpecError](why)
	switch {
	case errors.Is(why, index.ErrWaitsForConsumer):
		return event{v1.EventTypeNormal, reasonWaitForConsumer, "waiting for first consumer to be created before binding", ""}
	case errors.Is(why, index.ErrNeedsData):
		return event{v1.EventTypeWarning, reasonProvisioningFailed, why.Error(), ""}
	case invalid:
		return event{v1.EventTypeWarning, reasonFailedBinding, why.Error(), ""}
	case why.Volume != "" && len(why.Rejected) == 0:
		return event{v1.EventTypeNormal, reasonFailedBinding, fmt.Sprintf("volume %q, which the claim names, does not exist; create it", why.Volume), ""}
	case why.Volume != "" && why.Rejected[0].Reason == index.BoundElsewhere:
		return event{v1.EventTypeWarning, reasonFailedBinding, fmt.Sprintf("volume %q already bound to a different claim.", why.Volume), ""}
	case why.Volume != "":
		return event{v1.EventTypeWarning, reasonVolumeMismatch, fmt.Sprintf("Cannot bind to requested volume %q", why.Volume), why.Reasons()}
	}
	message := "no persistent volumes available for this claim"
	if pvapi.ClaimClass(claim, "") == "" {
		message += " and no storage class is set"
	}
	return event{v1.EventTypeNormal, reasonFailedBinding, message, why.Reasons()}
}

// syncBoundClaim looks after a claim that was bound once.
func (b *binder) syncBoundClaim(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if isProvisioning(claim) {
		return b.provisioner.finishProvisioning(ctx, claim) // which enqueues it again
	}
	b.operations.Forget(provisionKey(claim)) // which may have failed
	if claim.Spec.VolumeName == "" {
		return b.lose(ctx, claim, reasonClaimLost, "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	}
	pv, exists, err := b.cluster.volumes.Get(ctx, types.NamespacedName{Name: claim.Spec.VolumeName})
	if err == nil && !exists {
		pv, exists, err = b.cluster.volumes.GetLive(ctx, types.NamespacedName{Name: claim.Spec.VolumeName})
	}
	switch {
	case err != nil:
		return err
	case !exists:
		return b.lose(ctx, claim, reasonClaimLost, "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case pv.Spec.ClaimRef == nil:
		if err := b.table.May(index.IDOf(claim), pv.Name); err != nil {
			return err
		}
	case !index.PreBound(pv, claim):
		return b.lose(ctx, claim, reasonClaimMisbound, "Two claims are bound to the same volume, this one is bound incorrectly")
	}
	return b.bind(ctx, claim, pv, func(*v1.PersistentVolume) {})
}

func (b *binder) lose(ctx context.Context, claim *v1.PersistentVolumeClaim, reason, message string) error {
	b.events.EventOnce(claim, v1.EventTypeWarning, reason, message, "")
	_, err := b.status.setClaimStatus(ctx, claim, v1.ClaimLost, nil)
	return err
}

// bind writes a binding: into the volume, which decides it, then into the
// claim, then into the phases of both, with what protects them. These four writes
// are as few as the API allows, for a status is written by itself. Whatever was
// done already is not written again. The volume is written only if it is still as
// given; committed is called when it was.
func (b *binder) bind(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, committed func(*v1.PersistentVolume)) error {
	turn, err := b.table.ReserveWriting(ctx, pv.Name)
	if err != nil {
		return err
	}
	defer turn.Forget()
	if err := b.provisioner.checkHeld(ctx, claim, pv); err != nil {
		return err
	}
	if !isBoundVolume(pv, claim) {
		if pv, err = b.writer.writeVolume(ctx, pv, boundVolume(pv, claim), b.cluster.volumes.Wrote); err != nil {
			return fmt.Errorf("bind volume %q: %w", pv.Name, err)
		}
	}
	committed(pv)
	if !isBoundClaim(claim, pv.Name) {
		next := boundClaim(claim, pv.Name)
		note := b.cluster.claims.Wrote
		if isProvisioning(next) { // another volume, which is to be done away with
			note = b.cluster.claims.Put
		}
		if claim, err = b.writer.writeClaim(ctx, claim, next, note); err != nil {
			return fmt.Errorf("bind to volume %q: %w", pv.Name, err)
		}
	}
	if pvapi.AwaitsClaim(pv) { // no longer: from now on it goes with it
		next := pv.DeepCopy()
		delete(next.Annotations, pvapi.AwaitsClaimAnnotation)
		delete(next.Annotations, pvapi.LostClaimAnnotation)
		if pv, err = b.writer.writeVolume(ctx, pv, next, b.cluster.volumes.Wrote); err != nil {
			return fmt.Errorf("note that volume %q has its claim: %w", pv.Name, err)
		}
	}
	if pv, err = b.status.setVolumePhase(ctx, pv, v1.VolumeBound, ""); err != nil {
		return fmt.Errorf("mark volume %q as bound: %w", pv.Name, err)
	}
	if claim, err = b.status.setClaimStatus(ctx, claim, v1.ClaimBound, pv); err != nil {
		return fmt.Errorf("mark it as bound: %w", err)
	}
	if claim, err = b.resizer.Sync(ctx, claim, pv); err != nil {
		return err
	}
	if err := b.recordUse(ctx, claim); err != nil {
		return fmt.Errorf("record whether it is used: %w", err)
	}
	return nil
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

// boundVolume returns a volume with all of a binding, which protects it. It shares with the
// one before what does not change.
func boundVolume(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) *v1.PersistentVolume {
	next, ref := *pv, v1.ObjectReference{}
	if pv.Spec.ClaimRef == nil {
		next.Annotations = pvapi.With(pv.Annotations, pvapi.AnnBoundByController, pvapi.AnnYes)
	} else {
		ref = *pv.Spec.ClaimRef
	}
	ref.APIVersion, ref.Kind = v1.SchemeGroupVersion.String(), pvapi.KindClaim
	ref.Namespace, ref.Name, ref.UID = claim.Namespace, claim.Name, claim.UID
	next.Spec.ClaimRef, next.Finalizers = &ref, protected(pv, volumeProtection)
	return &next
}

// boundClaim is the same of a claim. A volume that was made for it ends its provisioning.
func boundClaim(claim *v1.PersistentVolumeClaim, volumeName string) *v1.PersistentVolumeClaim {
	next := *claim
	next.Annotations = pvapi.With(claim.Annotations, pvapi.AnnBindCompleted, pvapi.AnnYes)
	if claim.Spec.VolumeName == "" {
		next.Annotations[pvapi.AnnBoundByController] = pvapi.AnnYes
	}
	next.Spec.VolumeName, next.Finalizers = volumeName, protected(claim, claimProtection)
	if volumeName == ProvisionedName(claim) {
		endProvisioning(&next)
	}
	return &next
}
