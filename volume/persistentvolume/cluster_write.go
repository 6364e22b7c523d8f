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

	"github.com/podvol/podvol/volume/internal/pvapi"
)

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

// boundVolume and boundClaim return what they change anew, and share the rest.
func boundVolume(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) *v1.PersistentVolume {
	next, ref := *pv, v1.ObjectReference{}
	if pv.Spec.ClaimRef == nil {
		next.Annotations = pvapi.With(pv.Annotations, pvapi.AnnBoundByController, pvapi.AnnYes)
	} else {
		ref = *pv.Spec.ClaimRef
	}
	ref.APIVersion, ref.Kind = v1.SchemeGroupVersion.String(), pvapi.KindClaim
	ref.Namespace, ref.Name, ref.UID = claim.Namespace, claim.Name, claim.UID
	next.Spec.ClaimRef = &ref
	return &next
}

func boundClaim(claim *v1.PersistentVolumeClaim, volumeName string) *v1.PersistentVolumeClaim {
	next := *claim
	next.Annotations = pvapi.With(claim.Annotations, pvapi.AnnBindCompleted, pvapi.AnnYes)
	if claim.Spec.VolumeName == "" {
		next.Annotations[pvapi.AnnBoundByController] = pvapi.AnnYes
	}
	next.Spec.VolumeName = volumeName
	return &next
}

// updateVolume and updateClaim write only differences, and return the stored
// version; on an error the object as it was. A new version is enqueued.
func (c *cluster) updateVolume(ctx context.Context, pv, next *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	if equality.Semantic.DeepEqual(pv, next) {
		return pv, nil
	}
	return c.writeVolume(ctx, pv, next, c.volumes.put)
}

func (c *cluster) updateClaim(ctx context.Context, claim, next *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	if equality.Semantic.DeepEqual(claim, next) {
		return claim, nil
	}
	return c.writeClaim(ctx, claim, next, c.claims.put)
}

func (c *cluster) writeVolume(ctx context.Context, pv, next *v1.PersistentVolume, note func(*v1.PersistentVolume) *v1.PersistentVolume) (*v1.PersistentVolume, error) {
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

func (c *cluster) writeClaim(ctx context.Context, claim, next *v1.PersistentVolumeClaim, note func(*v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
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
func (c *cluster) setVolumePhase(ctx context.Context, pv *v1.PersistentVolume, phase v1.PersistentVolumePhase, message string) (*v1.PersistentVolume, error) {
	if pv.Status.Phase == phase && pv.Status.Message == message || !c.keepsStatus() {
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
func (c *cluster) setClaimStatus(ctx context.Context, claim *v1.PersistentVolumeClaim, phase v1.PersistentVolumeClaimPhase, pv *v1.PersistentVolume) (*v1.PersistentVolumeClaim, error) {
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
	if isSameStatus(&claim.Status, &next.Status) || !c.keepsStatus() {
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

// setPending is for a claim that waits. Beside another controller it does nothing.
func (c *cluster) setPending(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if !c.keepsStatus() {
		return nil
	}
	claim, err := c.protectClaim(ctx, claim)
	if err == nil {
		_, err = c.setClaimStatus(ctx, claim, v1.ClaimPending, nil)
	}
	return pvapi.IgnoreMissing(err)
}
