package manifest

import (
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// The annotations of a StatefulSet's claim: the name of the set, which is in the
// claim's namespace, and the policy when the set is deleted and when it is scaled
// down: Retain or Delete.
const (
	StatefulSetAnnotation = "podvol.io/statefulset"
	WhenDeletedAnnotation = "podvol.io/statefulset-when-deleted"
	WhenScaledAnnotation  = "podvol.io/statefulset-when-scaled"
)

// Retention is a StatefulSet's persistentVolumeClaimRetentionPolicy for one of
// its claims (KEP-1847). Both fields are Retain by default: the claim outlives
// its set, and waits for a new set of that name.
type Retention struct {
	StatefulSet             types.NamespacedName
	WhenDeleted, WhenScaled appsv1.PersistentVolumeClaimRetentionPolicyType
}

// RetentionOf reads a claim's annotations. It returns false if the claim came
// with no StatefulSet. Every value but Delete means Retain.
func RetentionOf(claim *v1.PersistentVolumeClaim) (Retention, bool) {
	set, there := claim.Annotations[StatefulSetAnnotation]
	if !there {
		return Retention{}, false
	}
	return Retention{
		StatefulSet: types.NamespacedName{Namespace: claim.Namespace, Name: set},
		WhenDeleted: knownPolicy(claim.Annotations[WhenDeletedAnnotation]),
		WhenScaled:  knownPolicy(claim.Annotations[WhenScaledAnnotation]),
	}, true
}

func knownPolicy(text string) appsv1.PersistentVolumeClaimRetentionPolicyType {
	if p := appsv1.PersistentVolumeClaimRetentionPolicyType(text); p == appsv1.DeletePersistentVolumeClaimRetentionPolicyType {
		return p
	}
	return appsv1.RetainPersistentVolumeClaimRetentionPolicyType
}

// Keeps reports whether a claim stays that its StatefulSet no longer needs. If
// the set is still declared, it was scaled down; if not, it was deleted.
func (r Retention) Keeps(declared bool) bool {
	policy := r.WhenDeleted
	if declared {
		policy = r.WhenScaled
	}
	return policy != appsv1.DeletePersistentVolumeClaimRetentionPolicyType
}

// mark writes a retention into a claim.
func (r Retention) mark(claim *v1.PersistentVolumeClaim) {
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, StatefulSetAnnotation, r.StatefulSet.Name)
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, WhenDeletedAnnotation, string(r.WhenDeleted))
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, WhenScaledAnnotation, string(r.WhenScaled))
}

// retention returns a StatefulSet's policy for its claims, or an error in the
// policy.
func retention(set *appsv1.StatefulSet) (Retention, error) {
	r := Retention{
		StatefulSet: types.NamespacedName{Namespace: set.Namespace, Name: set.Name},
		WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
		WhenScaled:  appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
	}
	policy := set.Spec.PersistentVolumeClaimRetentionPolicy
	if policy == nil {
		return r, nil
	}
	for _, field := range []struct {
		name  string
		value appsv1.PersistentVolumeClaimRetentionPolicyType
		to    *appsv1.PersistentVolumeClaimRetentionPolicyType
	}{{"whenDeleted", policy.WhenDeleted, &r.WhenDeleted}, {"whenScaled", policy.WhenScaled, &r.WhenScaled}} {
		switch field.value {
		case "":
		case appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType:
			*field.to = field.value
		default:
			return r, volume.Invalid("spec.persistentVolumeClaimRetentionPolicy."+field.name, "%q is not one of Retain, Delete", field.value)
		}
	}
	return r, nil
}
