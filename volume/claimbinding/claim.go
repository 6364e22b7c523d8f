// Package claimbinding has the rules that bind a claim to its PersistentVolume on a
// node: [Check] says whether a node may mount the volume for the claim,
// [MatchesNode] whether the node can reach it, and [ClaimOf] which claim a pod's volume is.
// The functions do no I/O, change nothing, and build for every system.
package claimbinding

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

var (
	// ErrUnbound says that a claim has no PersistentVolume yet.
	ErrUnbound = errors.New("the claim is not bound")
	// ErrLost says that the PersistentVolume of a bound claim is gone.
	ErrLost = errors.New("the claim has lost its PersistentVolume")
	// ErrElsewhere says that claim and PersistentVolume do not belong to
	// each other. The volume would show another claim's data.
	ErrElsewhere = errors.New("the PersistentVolume belongs to another claim")
)

// Error says why a claim cannot be used. Err matches [ErrUnbound],
// [ErrLost] or [ErrElsewhere].
type Error struct {
	Claim types.NamespacedName
	// Volume is the PersistentVolume's name; empty while there is none.
	Volume string
	// Detail says which state the claim or volume is in and what to do.
	Detail string
	Err    error
}

func (e *Error) Error() string {
	text := fmt.Sprintf("PersistentVolumeClaim %q: %v", e.Claim, e.Err)
	if e.Volume != "" {
		text = fmt.Sprintf("PersistentVolumeClaim %q with PersistentVolume %q: %v", e.Claim, e.Volume, e.Err)
	}
	return text + ": " + e.Detail
}

// Unwrap returns the sentinel.
func (e *Error) Unwrap() error { return e.Err }

// WaitsFor implements [Waiting].
func (e *Error) WaitsFor() string {
	if !errors.Is(e.Err, ErrUnbound) {
		return ""
	}
	return ToBeBound(e.Claim)
}

// Waiting is an error of a pod's volume that says what of its claim the pod waits for, in a few
// words; empty: nothing that is known.
type Waiting interface {
	error
	WaitsFor() string
}

// ToBeBound is what a pod waits for whose claim has no volume yet.
func ToBeBound(claim types.NamespacedName) string { return fmt.Sprintf("claim %s to be bound", claim) }

// ClaimOf returns the name of the claim that a pod's volume is, if it is one. An
// ephemeral volume's claim is named after pod and volume.
func ClaimOf(pod *v1.Pod, v *v1.Volume) (types.NamespacedName, bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return types.NamespacedName{Namespace: pod.Namespace, Name: v.PersistentVolumeClaim.ClaimName}, true
	case v.Ephemeral != nil:
		return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name + "-" + v.Name}, true
	}
	return types.NamespacedName{}, false
}

// Check returns nil if a node may mount pv for pvc, by the kubelet's
// rules:
//
//   - The claim is bound to this volume.
//   - The volume's claimRef names this very claim, its UID included.
//
// pv may be nil if it does not exist or the claim names none. The error is a
// *[Error] with the mark of [volume.NothingDone]. Check changes nothing.
func Check(pvc *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	refuse := func(err error, format string, args ...any) error {
		claim := types.NamespacedName{Namespace: pvc.Namespace, Name: pvc.Name}
		return volume.NothingDone(&Error{Claim: claim, Volume: pvc.Spec.VolumeName, Err: err, Detail: fmt.Sprintf(format, args...)})
	}
	switch {
	case pvc.Status.Phase == v1.ClaimLost:
		return refuse(ErrLost, "restore the PersistentVolume or make a new claim")
	case pvc.Spec.VolumeName == "":
		return refuse(ErrUnbound, "it names no PersistentVolume; create one that fits, or name one in spec.volumeName")
	case pvc.Status.Phase != v1.ClaimBound:
		return refuse(ErrUnbound, "its phase is %q; wait until it is Bound", pvc.Status.Phase)
	case pv == nil:
		return refuse(ErrLost, "that PersistentVolume does not exist")
	case pv.Name != pvc.Spec.VolumeName:
		return refuse(ErrElsewhere, "PersistentVolume %q is not the one that the claim is bound to", pv.Name)
	}
	ref := pv.Spec.ClaimRef
	switch {
	case ref == nil:
		return refuse(ErrUnbound, "the PersistentVolume has no claimRef yet")
	case ref.Namespace != pvc.Namespace || ref.Name != pvc.Name:
		return refuse(ErrElsewhere, "its claimRef is \"%s/%s\"", ref.Namespace, ref.Name)
	case ref.UID != pvc.UID:
		return refuse(ErrElsewhere, "its claimRef has the UID %q and this claim %q: the claim was deleted and made again", ref.UID, pvc.UID)
	}
	return nil
}
