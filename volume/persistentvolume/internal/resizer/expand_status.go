package resizer

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume/internal/pvapi"
)

// markExpansion records how far an expansion is.
func (r *Resizer) markExpansion(ctx context.Context, claim *v1.PersistentVolumeClaim, target resource.Quantity, state v1.ClaimResourceStatus) (*v1.PersistentVolumeClaim, error) {
	if recorded := claim.Status.AllocatedResources[v1.ResourceStorage]; recorded.Cmp(target) == 0 && claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] == state {
		return claim, nil
	}
	condition, other := v1.PersistentVolumeClaimResizing, v1.PersistentVolumeClaimFileSystemResizePending
	message := fmt.Sprintf("waiting for the volume to be expanded to %s", target.String())
	if state == v1.PersistentVolumeClaimNodeResizePending {
		condition, other = other, condition
		message = fmt.Sprintf("waiting for the node to expand the file system to %s", target.String())
	}
	return r.Writer.ChangeStatus(ctx, claim, func(s *v1.PersistentVolumeClaimStatus) {
		s.AllocatedResources = pvapi.SetEntry(s.AllocatedResources, v1.ResourceStorage, target)
		s.AllocatedResourceStatuses = pvapi.SetEntry(s.AllocatedResourceStatuses, v1.ResourceStorage, state)
		setCondition(s, condition, message, other, v1.PersistentVolumeClaimControllerResizeError, v1.PersistentVolumeClaimNodeResizeError)
	})
}

// markExpansionFinished gives a claim the size that its volume has by now.
func (r *Resizer) markExpansionFinished(ctx context.Context, claim *v1.PersistentVolumeClaim, target, size resource.Quantity) (*v1.PersistentVolumeClaim, error) {
	claim, err := r.Writer.ChangeStatus(ctx, claim, func(s *v1.PersistentVolumeClaimStatus) {
		s.Capacity = pvapi.SetEntry(s.Capacity, v1.ResourceStorage, size)
		s.AllocatedResources = pvapi.SetEntry(s.AllocatedResources, v1.ResourceStorage, target)
		delete(s.AllocatedResourceStatuses, v1.ResourceStorage)
		s.Conditions = pvapi.WithoutConditions(s.Conditions, v1.PersistentVolumeClaimResizing, v1.PersistentVolumeClaimFileSystemResizePending,
			v1.PersistentVolumeClaimControllerResizeError, v1.PersistentVolumeClaimNodeResizeError)
	})
	if err == nil {
		r.Events.Forget(claim.UID)
		r.note(claim.UID, claim, nil)
		r.Events.Event(claim, v1.EventTypeNormal, reasonResized, fmt.Sprintf("the volume has %s", size.String()))
	}
	return claim, err
}

func (r *Resizer) markExpansionInfeasible(ctx context.Context, claim *v1.PersistentVolumeClaim, why error) (*v1.PersistentVolumeClaim, error) {
	return r.Writer.ChangeStatus(ctx, claim, func(s *v1.PersistentVolumeClaimStatus) {
		s.AllocatedResourceStatuses = pvapi.SetEntry(s.AllocatedResourceStatuses, v1.ResourceStorage, v1.PersistentVolumeClaimControllerResizeInfeasible)
		setCondition(s, v1.PersistentVolumeClaimControllerResizeError, why.Error(), v1.PersistentVolumeClaimResizing)
	})
}
