package pvapi_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
)

func list(size string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
}

func TestRecordNodeResize(t *testing.T) {
	const (
		pending    = v1.PersistentVolumeClaimNodeResizePending
		infeasible = v1.PersistentVolumeClaimNodeResizeInfeasible
		controller = v1.PersistentVolumeClaimControllerResizeInProgress
	)
	refused := fmt.Errorf("%w: quota", volume.ErrResizeInfeasible)
	for name, tc := range map[string]struct {
		has, target string // of the status; target "": unknown
		state       v1.ClaimResourceStatus
		condition   v1.PersistentVolumeClaimConditionType
		size        string
		err         error

		wantSize  string
		wantState v1.ClaimResourceStatus
		want      []v1.PersistentVolumeClaimConditionType
		same      bool
	}{
		"grown":                  {has: "1Gi", target: "2Gi", state: pending, condition: v1.PersistentVolumeClaimFileSystemResizePending, size: "2Gi", wantSize: "2Gi"},
		"grown after a failure":  {has: "1Gi", target: "2Gi", state: infeasible, condition: v1.PersistentVolumeClaimNodeResizeError, size: "2Gi", wantSize: "2Gi"},
		"by an older controller": {has: "1Gi", condition: v1.PersistentVolumeClaimFileSystemResizePending, size: "2Gi", wantSize: "2Gi"},
		"known already":          {has: "2Gi", target: "2Gi", size: "2Gi", wantSize: "2Gi", same: true},
		"larger by now": {has: "1Gi", target: "3Gi", state: pending, condition: v1.PersistentVolumeClaimFileSystemResizePending, size: "2Gi",
			wantSize: "2Gi", wantState: pending, want: []v1.PersistentVolumeClaimConditionType{v1.PersistentVolumeClaimFileSystemResizePending}},
		"a controller works on": {has: "1Gi", target: "2Gi", state: controller, condition: v1.PersistentVolumeClaimResizing, size: "2Gi",
			wantSize: "2Gi", wantState: controller, want: []v1.PersistentVolumeClaimConditionType{v1.PersistentVolumeClaimResizing}},
		"infeasible": {has: "1Gi", target: "2Gi", state: pending, condition: v1.PersistentVolumeClaimFileSystemResizePending, size: "2Gi", err: refused,
			wantSize: "1Gi", wantState: infeasible, want: []v1.PersistentVolumeClaimConditionType{v1.PersistentVolumeClaimFileSystemResizePending, v1.PersistentVolumeClaimNodeResizeError}},
		"infeasible, and a controller works on": {has: "1Gi", target: "2Gi", state: controller, condition: v1.PersistentVolumeClaimResizing, size: "2Gi", err: refused,
			wantSize: "1Gi", wantState: controller, want: []v1.PersistentVolumeClaimConditionType{v1.PersistentVolumeClaimResizing}, same: true},
		"in use": {has: "1Gi", target: "2Gi", state: pending, condition: v1.PersistentVolumeClaimFileSystemResizePending, size: "2Gi", err: volume.ErrResizeInUse,
			wantSize: "1Gi", wantState: pending, want: []v1.PersistentVolumeClaimConditionType{v1.PersistentVolumeClaimFileSystemResizePending, v1.PersistentVolumeClaimNodeResizeError}},
		"a failure of a size that is not asked for any more": {has: "1Gi", target: "3Gi", state: pending, size: "2Gi", err: errors.New("no"), wantSize: "1Gi", wantState: pending, same: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &v1.PersistentVolumeClaimStatus{Capacity: list(tc.has)}
			if tc.target != "" {
				s.AllocatedResources = list(tc.target)
			}
			if tc.state != "" {
				s.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: tc.state}
			}
			if tc.condition != "" {
				s.Conditions = []v1.PersistentVolumeClaimCondition{{Type: tc.condition, Status: v1.ConditionTrue}}
			}
			size := resource.MustParse(tc.size)
			if changed := pvapi.RecordNodeResize(s, size, tc.err, time.Unix(1, 0)); changed == tc.same {
				t.Errorf("changed: %v", changed)
			}
			if pvapi.RecordNodeResize(s, size, tc.err, time.Unix(2, 0)) {
				t.Error("the same report once more changes the status")
			}
			var types []v1.PersistentVolumeClaimConditionType
			for _, c := range s.Conditions {
				types = append(types, c.Type)
			}
			if got := s.Capacity[v1.ResourceStorage]; got.String() != tc.wantSize || s.AllocatedResourceStatuses[v1.ResourceStorage] != tc.wantState || !cmp.Equal(types, tc.want) {
				t.Errorf("got %s, %q, %v", got.String(), s.AllocatedResourceStatuses[v1.ResourceStorage], types)
			}
		})
	}
}

func TestRecordNodeResizeStarted(t *testing.T) {
	for state, want := range map[v1.ClaimResourceStatus]v1.ClaimResourceStatus{
		"": "",
		v1.PersistentVolumeClaimNodeResizePending:          v1.PersistentVolumeClaimNodeResizeInProgress,
		v1.PersistentVolumeClaimNodeResizeInProgress:       v1.PersistentVolumeClaimNodeResizeInProgress,
		v1.PersistentVolumeClaimNodeResizeInfeasible:       v1.PersistentVolumeClaimNodeResizeInfeasible,
		v1.PersistentVolumeClaimControllerResizeInProgress: v1.PersistentVolumeClaimControllerResizeInProgress,
	} {
		s := &v1.PersistentVolumeClaimStatus{}
		if state != "" {
			s.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: state}
		}
		if changed := pvapi.RecordNodeResizeStarted(s); changed != (state != want) || s.AllocatedResourceStatuses[v1.ResourceStorage] != want {
			t.Errorf("%q becomes %q, changed=%v", state, s.AllocatedResourceStatuses[v1.ResourceStorage], changed)
		}
	}
}
