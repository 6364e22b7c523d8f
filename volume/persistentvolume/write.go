package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// Annotations of bound claims and volumes.
const (
	annBindCompleted     = "pv.kubernetes.io/bind-completed"
	annBoundByController = "pv.kubernetes.io/bound-by-controller"
	yes                  = "yes"
)

// take shows a recorded binding in the volume, so that no other claim takes it,
// and returns the volume. That may have been done already, as may the steps of
// complete. A volume that is gone is a conflict, as one that has changed.
func (s *session) take(ctx context.Context, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolume, error) {
	pv, err := update(ctx, s.Objects.Update, boundVolume(pv, claim))
	if errors.Is(err, volume.ErrNotFound) {
		err = fmt.Errorf("%w: %w", objects.ErrConflict, err)
	}
	if err != nil {
		return nil, fmt.Errorf("bind volume %q: %w", pv.Name, err)
	}
	return pv, nil
}

// complete shows the binding of a volume that is taken in the claim, then in
// the phases of both.
func (s *session) complete(ctx context.Context, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) error {
	claim, err := update(ctx, s.Objects.Update, boundClaim(claim, pv.Name))
	if err != nil {
		return fmt.Errorf("bind to volume %q: %w", pv.Name, err)
	}
	pv.Status.Phase, pv.Status.Message, pv.Status.Reason = v1.VolumeBound, "", ""
	if pv, err = update(ctx, s.Objects.UpdateStatus, pv); err != nil {
		return fmt.Errorf("mark volume %q as bound: %w", pv.GetName(), err)
	}
	claim.Status.Phase = v1.ClaimBound
	claim.Status.AccessModes = pv.Spec.AccessModes
	claim.Status.Capacity = v1.ResourceList{v1.ResourceStorage: pv.Spec.Capacity[v1.ResourceStorage]}
	if _, err = update(ctx, s.Objects.UpdateStatus, claim); err != nil {
		return fmt.Errorf("mark it as bound: %w", err)
	}
	return nil
}

// update writes an object and returns what is stored; on an error it returns
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
		next.Annotations = with(pv.Annotations, annBoundByController, yes)
	} else {
		ref = *pv.Spec.ClaimRef
	}
	ref.APIVersion, ref.Kind = v1.SchemeGroupVersion.String(), kindClaim
	ref.Namespace, ref.Name, ref.UID = claim.Namespace, claim.Name, claim.UID
	next.Spec.ClaimRef = &ref
	return &next
}

func boundClaim(claim *v1.PersistentVolumeClaim, volumeName string) *v1.PersistentVolumeClaim {
	next := *claim
	next.Annotations = with(claim.Annotations, annBindCompleted, yes)
	if claim.Spec.VolumeName == "" {
		next.Annotations[annBoundByController] = yes
	}
	next.Spec.VolumeName = volumeName
	return &next
}

func with(annotations map[string]string, key, value string) map[string]string {
	all := make(map[string]string, len(annotations)+2)
	maps.Copy(all, annotations)
	all[key] = value
	return all
}
