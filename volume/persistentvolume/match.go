package persistentvolume

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// Wanted is a claim and the circumstances in which it is to be bound.
type Wanted struct {
	Claim *v1.PersistentVolumeClaim
	// DefaultClass is the class of a claim that names none ([DefaultClass]).
	DefaultClass string
	// NodeName is the node whose pod waits for the claim; empty does not look
	// at node affinity. NodeLabels are that node's.
	NodeName   string
	NodeLabels map[string]string
	// Reserved says which volumes belong to another claim, whatever their
	// claimRef says: the other claim's name, or anything that names it.
	Reserved map[string]string
}

// Match returns the volume for a claim, by Kubernetes' rules: the volume that
// the claim names in spec.volumeName; else one whose claimRef names the claim,
// whatever its class and labels are; else the smallest of those that have the
// claim's class, size, access modes, volume mode and labels, and can be
// reached from the node; of equal ones the first by name. The result does not
// depend on the order of the volumes.
//
// Where none fits, the error is an *[UnboundError] that says for every volume
// why. Nothing is changed.
func Match(w Wanted, volumes []*v1.PersistentVolume) (*v1.PersistentVolume, error) {
	volumes = slices.SortedFunc(slices.Values(volumes), bySizeThenName)
	if w.Claim.Spec.VolumeName != "" {
		volumes = slices.DeleteFunc(volumes, func(pv *v1.PersistentVolume) bool { return pv.Name != w.Claim.Spec.VolumeName })
	}
	selector, err := metav1.LabelSelectorAsSelector(w.Claim.Spec.Selector)
	if err != nil {
		return nil, volume.Invalid("spec.selector", "%v", err)
	}
	if w.Claim.Spec.Selector == nil {
		selector = labels.Everything()
	}
	var best *v1.PersistentVolume
	failed := &UnboundError{Claim: nameOf(w.Claim), Volume: w.Claim.Spec.VolumeName, Err: volume.ErrClaimUnbound}
	for _, pv := range volumes {
		if rejected := w.reject(pv, selector); rejected != nil {
			failed.Rejected = append(failed.Rejected, *rejected)
			continue
		}
		if preBound(pv, w.Claim) {
			return pv, nil
		}
		if best == nil {
			best = pv
		}
	}
	if best == nil {
		return nil, failed
	}
	return best, nil
}

func bySizeThenName(a, b *v1.PersistentVolume) int {
	sizeA, sizeB := a.Spec.Capacity[v1.ResourceStorage], b.Spec.Capacity[v1.ResourceStorage]
	return cmp.Or(sizeA.Cmp(sizeB), cmp.Compare(a.Name, b.Name))
}

// preBound reports whether the volume's claimRef means this claim.
func preBound(pv *v1.PersistentVolume, pvc *v1.PersistentVolumeClaim) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.Namespace == pvc.Namespace && ref.Name == pvc.Name &&
		(ref.UID == "" || ref.UID == pvc.UID)
}

// reject says why the claim cannot have the volume, or nil.
func (w Wanted) reject(pv *v1.PersistentVolume, selector labels.Selector) *Rejection {
	for _, check := range []func(*v1.PersistentVolume, labels.Selector) *Rejection{
		w.rejectOwned, w.rejectState, w.rejectKind, w.rejectClass, w.rejectSize, w.rejectNode,
	} {
		if r := check(pv, selector); r != nil {
			r.Volume = pv.Name
			return r
		}
	}
	return nil
}

func (w Wanted) rejectOwned(pv *v1.PersistentVolume, _ labels.Selector) *Rejection {
	if other, ok := w.Reserved[pv.Name]; ok {
		return &Rejection{Reason: BoundElsewhere, Detail: other}
	}
	if ref := pv.Spec.ClaimRef; ref != nil && !preBound(pv, w.Claim) {
		detail := ref.Namespace + "/" + ref.Name
		if detail == nameOf(w.Claim).String() {
			detail = "an earlier claim of this name"
		}
		return &Rejection{Reason: BoundElsewhere, Detail: detail}
	}
	return nil
}

func (w Wanted) rejectState(pv *v1.PersistentVolume, _ labels.Selector) *Rejection {
	switch {
	case pv.DeletionTimestamp != nil:
		return &Rejection{Reason: NotAvailable, Detail: "being deleted"}
	case pv.Status.Phase == v1.VolumeReleased || pv.Status.Phase == v1.VolumeFailed:
		return &Rejection{Reason: NotAvailable, Detail: string(pv.Status.Phase)}
	}
	return nil
}

func (w Wanted) rejectKind(pv *v1.PersistentVolume, _ labels.Selector) *Rejection {
	if have, want := volumeMode(pv.Spec.VolumeMode), volumeMode(w.Claim.Spec.VolumeMode); have != want {
		return &Rejection{Reason: OtherVolumeMode, Detail: string(have)}
	}
	for _, mode := range w.Claim.Spec.AccessModes {
		if !slices.Contains(pv.Spec.AccessModes, mode) {
			return &Rejection{Reason: OtherAccessModes, Detail: "not " + string(mode)}
		}
	}
	return nil
}

func volumeMode(mode *v1.PersistentVolumeMode) v1.PersistentVolumeMode {
	if mode == nil {
		return v1.PersistentVolumeFilesystem
	}
	return *mode
}

// rejectClass does not apply where the administrator has chosen the claim.
func (w Wanted) rejectClass(pv *v1.PersistentVolume, selector labels.Selector) *Rejection {
	if preBound(pv, w.Claim) {
		return nil
	}
	if have := volumeClass(pv); have != claimClass(w.Claim, w.DefaultClass) {
		return &Rejection{Reason: OtherClass, Detail: fmt.Sprintf("class %q", have)}
	}
	if w.Claim.Spec.VolumeName == "" && !selector.Matches(labels.Set(pv.Labels)) {
		return &Rejection{Reason: OtherLabels}
	}
	return nil
}

func (w Wanted) rejectSize(pv *v1.PersistentVolume, _ labels.Selector) *Rejection {
	have, want := pv.Spec.Capacity[v1.ResourceStorage], w.Claim.Spec.Resources.Requests[v1.ResourceStorage]
	if have.Cmp(want) < 0 {
		return &Rejection{Reason: TooSmall, Detail: fmt.Sprintf("%s of %s", have.String(), want.String())}
	}
	return nil
}

func (w Wanted) rejectNode(pv *v1.PersistentVolume, _ labels.Selector) *Rejection {
	if w.NodeName == "" {
		return nil
	}
	reachable, err := volume.MatchesNode(pv, w.NodeLabels, w.NodeName)
	switch {
	case err != nil:
		return &Rejection{Reason: OtherNode, Detail: err.Error()}
	case !reachable:
		return &Rejection{Reason: OtherNode, Detail: "not on " + w.NodeName}
	}
	return nil
}

func nameOf(pvc *v1.PersistentVolumeClaim) types.NamespacedName {
	return types.NamespacedName{Namespace: pvc.Namespace, Name: pvc.Name}
}
