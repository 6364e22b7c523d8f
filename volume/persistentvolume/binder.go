package persistentvolume

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
	"github.com/podvol/podvol/volume/persistentvolume/internal/reservation"
)

// binder is the [role] of a controller that does everything.
type binder struct {
	cluster    *cluster
	writer     *writer
	status     *ownStatus
	plugins    *volume.VolumePluginMgr
	index      *index.Index
	table      *reservation.Table
	waiting    *index.Waiting
	operations *operation.Executor
	events     *eventLog
	unbound    *reasons

	provisioner *provisioner
	reclaimer   *reclaimer
	expander    *expander
	// unusedCondition is ControllerConfig.UnusedCondition.
	unusedCondition bool
}

func (b *binder) pluginFor(provisioner string) string { return provisioner }

func (b *binder) isExternal(provisioner string) bool {
	return isForeign(provisioner, pluginsOf(b.plugins))
}

func (b *binder) begin(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (next *v1.PersistentVolumeClaim, noted bool) {
	next = withProvisioner(claim, class)
	return next, isProvisioning(next)
}

// tellBegun tells nothing, as in Kubernetes.
func (b *binder) tellBegun(*v1.PersistentVolumeClaim) {}

func (b *binder) complete(pv *v1.PersistentVolume) {
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, pvapi.AnnBoundByController, pvapi.AnnYes)
	pv.Finalizers = withOne(pv.Finalizers, volumeProtection)
	if pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete {
		pv.Finalizers = withOne(pv.Finalizers, pvapi.DeletionFinalizer)
	}
}

// storageFinalizers has also the finalizer from before the controller was alone.
func (b *binder) storageFinalizers() []string {
	return []string{pvapi.DeletionFinalizer, besideFinalizer}
}

func (b *binder) deleterOf(pv *v1.PersistentVolume) (volume.DeletableVolumePlugin, *volume.Spec, error) {
	spec := volume.NewSpecFromPersistentVolume(pv.DeepCopy(), false)
	plugin, err := pvapi.PluginOf(b.plugins, spec)
	if err != nil {
		return nil, nil, err
	}
	deleter, err := b.plugins.FindDeletablePluginByName(plugin.GetPluginName())
	return deleter, spec, err
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
	if err := b.checkHeld(ctx, claim, pv); err != nil {
		return err
	}
	if !isBoundVolume(pv, claim) {
		if pv, err = b.writer.writeVolume(ctx, pv, protectedVolume(boundVolume(pv, claim)), b.cluster.volumes.wrote); err != nil {
			return fmt.Errorf("bind volume %q: %w", pv.Name, err)
		}
	}
	committed(pv)
	if !isBoundClaim(claim, pv.Name) {
		next := protectedClaim(boundClaim(claim, pv.Name))
		if pv.Name == ProvisionedName(claim) {
			endProvisioning(next)
		}
		note := b.cluster.claims.wrote
		if isProvisioning(next) { // another volume, which is to be done away with
			note = b.cluster.claims.put
		}
		if claim, err = b.writer.writeClaim(ctx, claim, next, note); err != nil {
			return fmt.Errorf("bind to volume %q: %w", pv.Name, err)
		}
	}
	if pvapi.AwaitsClaim(pv) { // no longer: from now on it goes with it
		next := pv.DeepCopy()
		delete(next.Annotations, pvapi.AwaitsClaimAnnotation)
		delete(next.Annotations, pvapi.LostClaimAnnotation)
		if pv, err = b.writer.writeVolume(ctx, pv, next, b.cluster.volumes.wrote); err != nil {
			return fmt.Errorf("note that volume %q has its claim: %w", pv.Name, err)
		}
	}
	if pv, err = b.status.setVolumePhase(ctx, pv, v1.VolumeBound, ""); err != nil {
		return fmt.Errorf("mark volume %q as bound: %w", pv.Name, err)
	}
	if claim, err = b.status.setClaimStatus(ctx, claim, v1.ClaimBound, pv); err != nil {
		return fmt.Errorf("mark it as bound: %w", err)
	}
	if claim, err = b.expander.recordGrowth(ctx, claim, pv); err != nil {
		return fmt.Errorf("record that it asks for more: %w", err)
	}
	if claim, err = b.expander.recordModification(ctx, claim); err != nil {
		return fmt.Errorf("record that it asks for other attributes: %w", err)
	}
	if err := b.recordUse(ctx, claim); err != nil {
		return fmt.Errorf("record whether it is used: %w", err)
	}
	return nil
}

// checkHeld refuses a volume that was made for a claim and let go before it was this
// call's turn to write: no part of the binding may be written into it, and the claim
// must find its storage again.
func (b *binder) checkHeld(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	if pv.Name != ProvisionedName(claim) || !isProvisioning(claim) || !isBoundVolume(pv, claim) {
		return nil
	}
	now, exists, err := b.cluster.volumes.get(ctx, types.NamespacedName{Name: pv.Name})
	if err == nil && (!exists || now.UID != pv.UID || b.provisioner.isLetGo(now)) {
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
