package persistentvolume

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/internal/pvapi"
)

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
