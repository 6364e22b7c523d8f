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
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/latest"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/objects"
)

// writer writes claims and volumes, and notes the stored versions.
type writer struct {
	objects objects.Writer
	claims  *latest.Objects[*v1.PersistentVolumeClaim]
	volumes *latest.Objects[*v1.PersistentVolume]
	queue   *work.Queue[volume.ObjectRef]
}

// update writes an object and returns the stored version; on an error it returns
// the object, so that it can be named.
func update[T metav1.Object](ctx context.Context, f func(context.Context, metav1.Object) (metav1.Object, error), object T) (T, error) {
	stored, err := f(ctx, object)
	if err != nil {
		return object, err
	}
	typed, ok := stored.(T)
	if !ok {
		return object, fmt.Errorf("the store answered with a %T", stored)
	}
	return typed, nil
}

// UpdateVolume and updateClaim write only differences, and return the stored
// version; on an error the object as it was. A new version is enqueued.
func (w *writer) UpdateVolume(ctx context.Context, pv, next *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	if equality.Semantic.DeepEqual(pv, next) {
		return pv, nil
	}
	return w.writeVolume(ctx, pv, next, w.volumes.Put)
}

func (w *writer) updateClaim(ctx context.Context, claim, next *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	if equality.Semantic.DeepEqual(claim, next) {
		return claim, nil
	}
	return w.writeClaim(ctx, claim, next, w.claims.Put)
}

func (w *writer) writeVolume(ctx context.Context, pv, next *v1.PersistentVolume, note func(*v1.PersistentVolume) *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	stored, err := update(ctx, w.objects.Update, next)
	if err != nil {
		return pv, w.volumes.Failed(ctx, next, err)
	}
	if pvapi.IsGone(stored) {
		w.volumes.Gone(stored)
		w.queue.Enqueue(pvapi.VolumeRef(stored.Name))
		return stored, nil
	}
	return note(stored), nil
}

func (w *writer) writeClaim(ctx context.Context, claim, next *v1.PersistentVolumeClaim, note func(*v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	stored, err := update(ctx, w.objects.Update, next)
	if err != nil {
		return claim, w.claims.Failed(ctx, next, err)
	}
	if pvapi.IsGone(stored) {
		w.queue.Enqueue(pvapi.ClaimRef(pvapi.NameOf(stored)))
		return stored, nil
	}
	return note(stored), nil
}

// ChangeStatus writes what f makes of a copy of a claim's status.
func (w *writer) ChangeStatus(ctx context.Context, claim *v1.PersistentVolumeClaim, f func(*v1.PersistentVolumeClaimStatus)) (*v1.PersistentVolumeClaim, error) {
	next := claim.DeepCopy()
	f(&next.Status)
	stored, err := update(ctx, w.objects.UpdateStatus, next)
	if err != nil {
		return claim, err
	}
	return w.claims.Wrote(stored), nil
}

// statusKeeper keeps the phases of claims and volumes, as far as that is the controller's work.
type statusKeeper interface {
	// setVolumePhase writes a phase if it is another one. Nothing follows from it for claims.
	setVolumePhase(ctx context.Context, pv *v1.PersistentVolume, phase v1.PersistentVolumePhase, message string) (*v1.PersistentVolume, error)
	// setPending is for a claim that waits.
	setPending(ctx context.Context, claim *v1.PersistentVolumeClaim) error
}

// othersStatus leaves the phases to another controller.
type othersStatus struct{}

func (othersStatus) setVolumePhase(_ context.Context, pv *v1.PersistentVolume, _ v1.PersistentVolumePhase, _ string) (*v1.PersistentVolume, error) {
	return pv, nil
}

func (othersStatus) setPending(context.Context, *v1.PersistentVolumeClaim) error { return nil }

// ownStatus is the [statusKeeper] of a controller that does everything. It protects claims as
// well.
type ownStatus struct {
	cluster *cluster
	writer  *writer
}

func (s *ownStatus) setVolumePhase(ctx context.Context, pv *v1.PersistentVolume, phase v1.PersistentVolumePhase, message string) (*v1.PersistentVolume, error) {
	if pv.Status.Phase == phase && pv.Status.Message == message {
		return pv, nil
	}
	next := *pv
	if next.Status.Phase != phase {
		next.Status.LastPhaseTransitionTime = new(metav1.Now())
	}
	next.Status.Phase, next.Status.Message, next.Status.Reason = phase, message, ""
	stored, err := update(ctx, s.writer.objects.UpdateStatus, &next)
	if err != nil {
		return pv, s.writer.volumes.Failed(ctx, &next, err)
	}
	return s.writer.volumes.Wrote(stored), nil
}

// setClaimStatus sets the phase and what a claim has of its volume, if any. The
// capacity of a claim that was bound before stays: a volume that has grown is
// larger than the file system in it may be.
func (s *ownStatus) setClaimStatus(ctx context.Context, claim *v1.PersistentVolumeClaim, phase v1.PersistentVolumeClaimPhase, pv *v1.PersistentVolume) (*v1.PersistentVolumeClaim, error) {
	next := *claim
	switch {
	case pv == nil:
		next.Status.AccessModes, next.Status.Capacity = nil, nil
	default:
		next.Status.AccessModes = pv.Spec.AccessModes
		next.Status.CurrentVolumeAttributesClassName = pv.Spec.VolumeAttributesClassName
		if next.Status.Phase != phase || len(next.Status.Capacity) == 0 {
			next.Status.Capacity = usableCapacity(pv)
		}
	}
	next.Status.Phase = phase
	if isSameStatus(&claim.Status, &next.Status) {
		return claim, nil
	}
	stored, err := update(ctx, s.writer.objects.UpdateStatus, &next)
	if err != nil {
		return claim, s.writer.claims.Failed(ctx, &next, err)
	}
	return s.writer.claims.Wrote(stored), nil
}

// usableCapacity is the size of the file system in a volume: one that was expanded
// for another claim may still be what it was, until a node has expanded it too.
// Kubernetes refuses to bind to what it cannot read; here the volume's own counts.
func usableCapacity(pv *v1.PersistentVolume) v1.ResourceList {
	if before, err := resource.ParseQuantity(pv.Annotations[pvapi.AnnPreResizeCapacity]); err == nil {
		return v1.ResourceList{v1.ResourceStorage: before}
	}
	if own, ok := pv.Spec.Capacity[v1.ResourceStorage]; !ok || len(pv.Spec.Capacity) > 1 {
		return v1.ResourceList{v1.ResourceStorage: own}
	}
	return pv.Spec.Capacity // shared
}

// isSameStatus compares what setClaimStatus sets.
func isSameStatus(a, b *v1.PersistentVolumeClaimStatus) bool {
	return a.Phase == b.Phase && slices.Equal(a.AccessModes, b.AccessModes) &&
		ptr.Equal(a.CurrentVolumeAttributesClassName, b.CurrentVolumeAttributesClassName) &&
		maps.EqualFunc(a.Capacity, b.Capacity, func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
}

func (s *ownStatus) setPending(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	claim, err := s.protectClaim(ctx, claim)
	if err == nil {
		_, err = s.setClaimStatus(ctx, claim, v1.ClaimPending, nil)
	}
	return pvapi.IgnoreMissing(err)
}

// protectClaim keeps a claim that is not being deleted, or lets one go that no
// pod uses.
func (s *ownStatus) protectClaim(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	if slices.Contains(claim.Finalizers, claimProtection) == (claim.DeletionTimestamp == nil) {
		return claim, nil
	}
	if claim.DeletionTimestamp == nil {
		return s.writer.updateClaim(ctx, claim, protectedClaim(claim))
	}
	if !s.cluster.podsComplete() {
		return claim, nil
	}
	if used, err := s.cluster.isUsed(ctx, claim); err != nil || used {
		return claim, err
	}
	next := claim.DeepCopy()
	next.Finalizers = pvapi.Without(next.Finalizers, claimProtection)
	return s.writer.updateClaim(ctx, claim, next)
}
