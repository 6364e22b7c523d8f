package persistentvolume

import (
	"context"
	"errors"
	"fmt"

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
	defer func() { b.unbound.settle(name, err) }()
	// What it is offered and does not take is for the next.
	for _, pv := range b.table.Offered(name) {
		defer b.table.GiveBack(pv, name)
	}
	claim, exists, err := b.cluster.claims.get(ctx, name)
	if err != nil {
		return err
	}
	if !exists {
		b.waiting.Done(name)
		return nil
	}
	if deleted, err := b.deleteOrphan(ctx, claim); err != nil || deleted {
		return err // which has it looked at again
	}
	_, bound := claim.Annotations[pvapi.AnnBindCompleted]
	if bound || claim.DeletionTimestamp != nil { // else it is with the first that is written
		if claim, err = b.status.protectClaim(ctx, claim); err != nil {
			return pvapi.IgnoreMissing(err)
		}
		if pvapi.IsGone(claim) {
			return nil // which has it looked at again
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
		return nil // by the placement of its pod, which enqueues it again
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
	return DefaultClass(b.cluster.classes.all())
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
	if invalid || waits || why.Volume != "" || !canBeFilled(claim, class, b.isExternal) {
		return b.leavePending(ctx, claim, why)
	}
	if inVain, err := b.forgetGoneNode(ctx, claim, class); err != nil || inVain {
		return err // which has it looked at again
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

// forgetGoneNode gives the choice of a node back that does not exist, of a class
// that makes nothing there: no pod could be placed elsewhere.
func (b *binder) forgetGoneNode(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (bool, error) {
	if class == nil || class.Provisioner != noProvisioner {
		return false, nil
	}
	if _, err := b.cluster.selectedNode(ctx, claim); !errors.Is(err, volume.ErrNotFound) {
		return false, err
	}
	return true, b.provisioner.reschedule(ctx, pvapi.NameOf(claim))
}

// leavePending says why a claim has no volume.
func (b *binder) leavePending(ctx context.Context, claim *v1.PersistentVolumeClaim, why *index.UnboundError) error {
	b.unbound.set(pvapi.NameOf(claim), b.failedBefore(claim, why))
	eventType, reason, message, details := pendingEvent(claim, why)
	b.events.is(claim, eventType, reason, message, details)
	return b.status.setPending(ctx, claim)
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

func pendingEvent(claim *v1.PersistentVolumeClaim, why *index.UnboundError) (eventType, reason, message, details string) {
	_, invalid := errors.AsType[*volume.InvalidSpecError](why)
	switch {
	case errors.Is(why, index.ErrWaitsForConsumer):
		return v1.EventTypeNormal, reasonWaitForConsumer, "waiting for first consumer to be created before binding", ""
	case errors.Is(why, index.ErrNeedsData):
		return v1.EventTypeWarning, reasonProvisioningFailed, why.Error(), ""
	case invalid:
		return v1.EventTypeWarning, reasonFailedBinding, why.Error(), ""
	case why.Volume != "" && len(why.Rejected) == 0:
		return v1.EventTypeNormal, reasonFailedBinding, fmt.Sprintf("volume %q, which the claim names, does not exist; create it", why.Volume), ""
	case why.Volume != "" && why.Rejected[0].Reason == index.BoundElsewhere:
		return v1.EventTypeWarning, reasonFailedBinding, fmt.Sprintf("volume %q already bound to a different claim.", why.Volume), ""
	case why.Volume != "":
		return v1.EventTypeWarning, reasonVolumeMismatch, fmt.Sprintf("Cannot bind to requested volume %q", why.Volume), why.Reasons()
	}
	message = "no persistent volumes available for this claim"
	if pvapi.ClaimClass(claim, "") == "" {
		message += " and no storage class is set"
	}
	return v1.EventTypeNormal, reasonFailedBinding, message, why.Reasons()
}

// syncBoundClaim looks after a claim that was bound once.
func (b *binder) syncBoundClaim(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if isProvisioning(claim) {
		return b.provisioner.finishProvisioning(ctx, claim) // which has it looked at again
	}
	b.operations.Forget(provisionKey(claim)) // which may have failed
	if claim.Spec.VolumeName == "" {
		return b.lose(ctx, claim, reasonClaimLost, "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	}
	pv, exists, err := b.cluster.volumes.get(ctx, types.NamespacedName{Name: claim.Spec.VolumeName})
	if err == nil && !exists {
		pv, exists, err = b.cluster.volumes.getLive(ctx, types.NamespacedName{Name: claim.Spec.VolumeName})
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
	b.events.is(claim, v1.EventTypeWarning, reason, message, "")
	_, err := b.status.setClaimStatus(ctx, claim, v1.ClaimLost, nil)
	return err
}
