// Package growth decides whether the node has a part to do when a volume has grown, by the
// status of its claim as the kubelet does (KEP-284, KEP-1790), and keeps what came of it.
package growth

import (
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/mountrecord"
)

// ErrReadOnly says that a volume does not grow here, since it is mounted read-only.
var ErrReadOnly = errors.New("it is mounted read-only on this node")

// Wish is the node's part. The zero value: nothing.
type Wish struct {
	// Size is the size that the volume is to have.
	Size resource.Quantity
	// Call: the plugin is to be called. Report: the claim's status waits for the node.
	Call, Report bool
}

// Of is the node's part for a volume of which the node has reached a size; nil: not known.
//
//   - The claim's status asks for it: NodeResizePending or NodeResizeInProgress, or of an
//     older controller just the condition FileSystemResizePending.
//   - A claim that has the size already was reported by another node (ReadWriteMany). Its
//     volume is smaller here, if that is known.
//   - NodeResizeInfeasible is final until a controller says otherwise.
func Of(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, reached *resource.Quantity) Wish {
	size, has := pv.Spec.Capacity[v1.ResourceStorage], claim.Status.Capacity[v1.ResourceStorage]
	smaller := reached != nil && reached.Cmp(size) < 0
	switch {
	case pvapi.IsNodeResizing(&claim.Status) && size.Cmp(has) > 0:
		return Wish{Size: size, Call: reached == nil || smaller, Report: true}
	case state(claim) == "" && has.Cmp(size) >= 0 && smaller:
		return Wish{Size: size, Call: true}
	}
	return Wish{}
}

func state(claim *v1.PersistentVolumeClaim) v1.ClaimResourceStatus {
	return claim.Status.AllocatedResourceStatuses[v1.ResourceStorage]
}

// IsInfeasible reports whether the claim's status says that a node could not reach the size.
func IsInfeasible(claim *v1.PersistentVolumeClaim) bool {
	return state(claim) == v1.PersistentVolumeClaimNodeResizeInfeasible
}

// Reached is the largest size among the records of a PersistentVolume's volumes on the node.
// Without any it is the size that the claim has: so much the volume had before it came here.
// Nil: not known.
func Reached(records []*mountrecord.Record, claim *v1.PersistentVolumeClaim) (reached *resource.Quantity) {
	for _, r := range records {
		if r.Size != nil && (reached == nil || r.Size.Cmp(*reached) > 0) {
			reached = r.Size
		}
	}
	if has, ok := claim.Status.Capacity[v1.ResourceStorage]; ok && reached == nil && len(records) == 0 {
		return ptr.To(has.DeepCopy())
	}
	return reached
}

// Refusal is why a volume does not grow to a size, though the node was asked for it. The zero
// value: it was not refused.
type Refusal struct {
	Size resource.Quantity
	// Err matches [volume.ErrResizeInfeasible], [volume.ErrResizeInUse] or [ErrReadOnly].
	Err error
	// Reported: the claim's status has it, or needs no report.
	Reported bool
}

// Forbids reports whether a size is not tried again.
func (r Refusal) Forbids(size resource.Quantity) bool { return r.Err != nil && r.Size.Cmp(size) == 0 }

// IsOver reports whether a controller asks anew for a size that the claim was told to be
// infeasible. That the claim said so for a moment may go unseen. A view of the claim from before
// costs a call of the plugin.
func (r Refusal) IsOver(claim *v1.PersistentVolumeClaim) bool {
	return r.Reported && errors.Is(r.Err, volume.ErrResizeInfeasible) && state(claim) == v1.PersistentVolumeClaimNodeResizePending
}

// IsRefusal reports whether an error of NodeExpand is no reason to try again, nor to keep the
// volume from the pod: it has the size that it had.
//
// The kubelet lets an infeasible size fail one set-up, and then mounts all the same; a volume
// that is in use is mounted. Any other error keeps the pod waiting, with the kubelet as here:
// the file system may be half grown.
func IsRefusal(err error) bool {
	return errors.Is(err, volume.ErrResizeInfeasible) || errors.Is(err, volume.ErrResizeInUse) || errors.Is(err, ErrReadOnly)
}
