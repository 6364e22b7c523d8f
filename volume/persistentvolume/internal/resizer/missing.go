package resizer

import (
	"context"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/internal/pvapi"
)

// Missing says why a bound claim does not get what it asks for, by the last attempt of this
// process; nil: nothing is in its way, or nothing was tried yet.
func (r *Resizer) Missing(claim *v1.PersistentVolumeClaim) error {
	size, _ := r.missing.Load(claim.UID)
	attributes, _ := r.missing.Load(attributesOf(claim))
	first, _ := size.(error)
	second, _ := attributes.(error)
	return errors.Join(first, second)
}

// note notes why a claim does not get what it asks for, under a name of its own for its
// attributes, and tells that. If why is nil, nothing is in its way.
func (r *Resizer) note(name types.UID, claim *v1.PersistentVolumeClaim, why error) {
	known, was := r.missing.Load(name)
	if why == nil {
		r.missing.Delete(name)
	} else {
		r.missing.Store(name, why)
	}
	if r.Changed != nil && (was != (why != nil) || was && known.(error).Error() != why.Error()) {
		r.Changed(pvapi.NameOf(claim))
	}
}

// setError writes a condition that says why a claim does not get what it asks for.
func (r *Resizer) setError(ctx context.Context, claim *v1.PersistentVolumeClaim, condition v1.PersistentVolumeClaimConditionType, why error) (*v1.PersistentVolumeClaim, error) {
	if messageOf(claim, condition) == why.Error() {
		return claim, nil
	}
	return r.Writer.ChangeStatus(ctx, claim, func(s *v1.PersistentVolumeClaimStatus) { setCondition(s, condition, why.Error()) })
}

// setCondition has a status say one thing, and not some others.
func setCondition(s *v1.PersistentVolumeClaimStatus, condition v1.PersistentVolumeClaimConditionType, message string, without ...v1.PersistentVolumeClaimConditionType) {
	s.Conditions = append(pvapi.WithoutConditions(s.Conditions, append(without, condition)...),
		v1.PersistentVolumeClaimCondition{Type: condition, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now(), Message: message})
}

// clearError removes that condition.
func (r *Resizer) clearError(ctx context.Context, claim *v1.PersistentVolumeClaim, condition v1.PersistentVolumeClaimConditionType) (*v1.PersistentVolumeClaim, error) {
	if messageOf(claim, condition) == "" {
		return claim, nil
	}
	return r.Writer.ChangeStatus(ctx, claim, func(s *v1.PersistentVolumeClaimStatus) {
		s.Conditions = pvapi.WithoutConditions(s.Conditions, condition)
	})
}

// messageOf is the message of a condition; empty: the claim has none.
func messageOf(claim *v1.PersistentVolumeClaim, condition v1.PersistentVolumeClaimConditionType) string {
	i := slices.IndexFunc(claim.Status.Conditions, func(c v1.PersistentVolumeClaimCondition) bool { return c.Type == condition })
	if i < 0 {
		return ""
	}
	return claim.Status.Conditions[i].Message
}
