package persistentvolume

import (
	"context"
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations of bound claims and volumes.
const (
	annBindCompleted     = "pv.kubernetes.io/bind-completed"
	annBoundByController = "pv.kubernetes.io/bound-by-controller"
	yes                  = "yes"

	// annPreResizeCapacity is on a volume that was expanded whose file system was not:
	// the size of that.
	annPreResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"
	// annMigratedTo names the CSI driver that has taken a volume over from the plugin
	// that made it.
	annMigratedTo = "pv.kubernetes.io/migrated-to"
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
