package pvapi

import (
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
)

// RecordNodeResize enters into a claim's status how the node's part of growing to a size ended,
// as the kubelet does (KEP-284, KEP-1790), and reports whether that changes it. A claim that is
// to get more by now, or whose growth is a controller's, keeps that: only the size that it has is
// entered.
func RecordNodeResize(s *v1.PersistentVolumeClaimStatus, size resource.Quantity, err error, now time.Time) bool {
	target, known := s.AllocatedResources[v1.ResourceStorage]
	superseded := known && target.Cmp(size) > 0
	if err != nil {
		return !superseded && IsNodeResizing(s) && recordNodeResizeError(s, err, now)
	}
	changed := false
	if has := s.Capacity[v1.ResourceStorage]; has.Cmp(size) < 0 {
		s.Capacity, changed = SetEntry(s.Capacity, v1.ResourceStorage, size), true
	}
	switch s.AllocatedResourceStatuses[v1.ResourceStorage] {
	case v1.PersistentVolumeClaimControllerResizeInProgress, v1.PersistentVolumeClaimControllerResizeInfeasible:
		return changed
	}
	if superseded {
		return changed
	}
	if _, is := s.AllocatedResourceStatuses[v1.ResourceStorage]; is {
		delete(s.AllocatedResourceStatuses, v1.ResourceStorage)
		changed = true
	}
	n := len(s.Conditions)
	s.Conditions = WithoutConditions(s.Conditions, v1.PersistentVolumeClaimResizing, v1.PersistentVolumeClaimFileSystemResizePending,
		v1.PersistentVolumeClaimControllerResizeError, v1.PersistentVolumeClaimNodeResizeError)
	return changed || len(s.Conditions) != n
}

// RecordNodeResizeStarted enters into a claim's status that the node's part has begun, and
// reports whether that changes it. Only a status with NodeResizePending is changed: a controller
// from before that state does not know the next one.
func RecordNodeResizeStarted(s *v1.PersistentVolumeClaimStatus) bool {
	if s.AllocatedResourceStatuses[v1.ResourceStorage] != v1.PersistentVolumeClaimNodeResizePending {
		return false
	}
	s.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimNodeResizeInProgress
	return true
}

// recordNodeResizeError notes a failure, and that the size is infeasible if it is. A failure
// that is noted already stays.
func recordNodeResizeError(s *v1.PersistentVolumeClaimStatus, err error, now time.Time) (changed bool) {
	const infeasible = v1.PersistentVolumeClaimNodeResizeInfeasible
	if errors.Is(err, volume.ErrResizeInfeasible) && s.AllocatedResourceStatuses[v1.ResourceStorage] != infeasible {
		s.AllocatedResourceStatuses = SetEntry(s.AllocatedResourceStatuses, v1.ResourceStorage, infeasible)
		changed = true
	}
	failed := v1.PersistentVolumeClaimCondition{
		Type: v1.PersistentVolumeClaimNodeResizeError, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(now),
		Message: fmt.Sprintf("failed to expand pvc with %v", err),
	}
	if slices.ContainsFunc(s.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
		return c.Type == failed.Type && c.Message == failed.Message
	}) {
		return changed
	}
	s.Conditions = append(WithoutConditions(s.Conditions, failed.Type), failed)
	return true
}

// IsNodeResizing reports whether a claim's growth waits for the node: its status says so, or of
// an older controller just the condition FileSystemResizePending.
func IsNodeResizing(s *v1.PersistentVolumeClaimStatus) bool {
	switch s.AllocatedResourceStatuses[v1.ResourceStorage] {
	case v1.PersistentVolumeClaimNodeResizePending, v1.PersistentVolumeClaimNodeResizeInProgress:
		return true
	case "":
		return slices.ContainsFunc(s.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
			return c.Type == v1.PersistentVolumeClaimFileSystemResizePending && c.Status == v1.ConditionTrue
		})
	}
	return false
}

// SetEntry sets an entry of a map, which may be nil.
func SetEntry[M ~map[K]V, K comparable, V any](m M, key K, value V) M {
	if m == nil {
		m = make(M)
	}
	m[key] = value
	return m
}

// WithoutConditions removes the conditions of some types, in place.
func WithoutConditions(conditions []v1.PersistentVolumeClaimCondition, types ...v1.PersistentVolumeClaimConditionType) []v1.PersistentVolumeClaimCondition {
	return slices.DeleteFunc(conditions, func(c v1.PersistentVolumeClaimCondition) bool { return slices.Contains(types, c.Type) })
}
