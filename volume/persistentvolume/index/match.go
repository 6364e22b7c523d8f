package index

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/pvapi"
)

// Wanted is a claim and the circumstances in which it is to be bound.
type Wanted struct {
	Claim *v1.PersistentVolumeClaim
	// DefaultClass is the class of a claim that names none ([persistentvolume.DefaultClass]).
	DefaultClass string
	// NodeName is the node whose pod waits for the claim; empty does not look
	// at node affinity. NodeLabels are that node's.
	NodeName   string
	NodeLabels map[string]string
	// Delayed is the claim of a class that waits for its first consumer, which
	// is not placed yet: it gets only a volume that was chosen for it.
	Delayed bool
}

// query is a claim as it is compared with volumes.
type query struct {
	Wanted
	id ClaimID
	// named is the volume that the claim names or has recorded; empty for any.
	named        string
	shelf        shelfKey
	request      Size
	selector     labels.Selector
	requirements labels.Requirements
}

// compile refuses a claim that the API server would not have let in.
func (w Wanted) compile() (*query, error) {
	request := w.Claim.Spec.Resources.Requests[v1.ResourceStorage]
	if request.Sign() <= 0 {
		return nil, volume.Invalid("spec.resources.requests.storage", "must be more than nothing, and is %s", request.String())
	}
	modes := w.Claim.Spec.AccessModes
	switch {
	case len(modes) == 0:
		return nil, volume.Invalid("spec.accessModes", "is required")
	case len(modes) > 1 && slices.Contains(modes, v1.ReadWriteOncePod):
		return nil, volume.Invalid("spec.accessModes", "has %s, which goes with no other", v1.ReadWriteOncePod)
	}
	q := &query{
		Wanted:   w,
		id:       IDOf(w.Claim),
		named:    w.Claim.Spec.VolumeName,
		request:  SizeOf(request),
		selector: labels.Everything(),
		shelf: shelfKey{
			class:           pvapi.ClaimClass(w.Claim, w.DefaultClass),
			mode:            pvapi.VolumeMode(w.Claim.Spec.VolumeMode),
			attributesClass: ptr.Deref(w.Claim.Spec.VolumeAttributesClassName, ""),
		},
	}
	if w.Claim.Spec.Selector == nil || q.named != "" {
		return q, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(w.Claim.Spec.Selector)
	if err != nil {
		return nil, volume.Invalid("spec.selector", "%v", err)
	}
	q.selector = selector
	q.requirements, _ = selector.Requirements()
	return q, nil
}

// PreBound reports whether the volume's claimRef means this claim.
func PreBound(pv *v1.PersistentVolume, pvc *v1.PersistentVolumeClaim) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.Namespace == pvc.Namespace && ref.Name == pvc.Name &&
		(ref.UID == "" || ref.UID == pvc.UID)
}

// reject says why the claim cannot have the volume, or nil. owner is another
// claim that the volume belongs to, whatever its claimRef says, or empty.
func (q *query) reject(pv *v1.PersistentVolume, owner string) *Rejection {
	checks := []func(*v1.PersistentVolume) *Rejection{q.rejectState, q.rejectMode, q.rejectFit, q.rejectLabels, q.rejectNode}
	r := q.rejectOwned(pv, owner)
	for i := 0; r == nil && i < len(checks); i++ {
		r = checks[i](pv)
	}
	if r != nil {
		r.Volume = pv.Name
	}
	return r
}

func (q *query) rejectOwned(pv *v1.PersistentVolume, owner string) *Rejection {
	if owner != "" {
		return &Rejection{Reason: BoundElsewhere, Detail: owner}
	}
	if ref := pv.Spec.ClaimRef; ref != nil && !PreBound(pv, q.Claim) {
		detail := ref.Namespace + "/" + ref.Name
		if detail == pvapi.NameOf(q.Claim).String() {
			detail = "an earlier claim of this name"
		}
		return &Rejection{Reason: BoundElsewhere, Detail: detail}
	}
	return nil
}

// chosen reports whether this volume was chosen for this claim, on
// whichever side.
func (q *query) chosen(pv *v1.PersistentVolume) bool {
	return q.named != "" || PreBound(pv, q.Claim)
}

// agreed reports whether both sides name each other.
func (q *query) agreed(pv *v1.PersistentVolume) bool {
	return q.named == pv.Name && PreBound(pv, q.Claim)
}

// begun reports whether both sides agreed, and the volume was bound to this very
// claim: only the claim is left to be written, even if the volume is being
// deleted since.
func (q *query) begun(pv *v1.PersistentVolume) bool {
	return q.agreed(pv) && pv.Spec.ClaimRef.UID != ""
}

func (q *query) rejectState(pv *v1.PersistentVolume) *Rejection {
	if detail := unavailable(pv, q.chosen(pv)); detail != "" && !q.begun(pv) {
		return &Rejection{Reason: NotAvailable, Detail: detail}
	}
	if detail := Unusable(pv); detail != "" {
		return &Rejection{Reason: Invalid, Detail: detail}
	}
	return nil
}

// unavailable says in which state no claim gets the volume. A chosen claim gets
// it in spite of its phase or of a disk that may come back.
func unavailable(pv *v1.PersistentVolume, chosen bool) string {
	switch phase := pv.Status.Phase; {
	case pv.DeletionTimestamp != nil:
		return "being deleted"
	case !chosen && (phase == v1.VolumeReleased || phase == v1.VolumeFailed):
		return string(phase)
	case !chosen && pv.Annotations[claimbinding.LocalVolumeMissing] != "":
		return "its disk is missing since " + pv.Annotations[claimbinding.LocalVolumeMissing]
	}
	return ""
}

// Unusable says what the API server would not have let in.
func Unusable(pv *v1.PersistentVolume) string {
	capacity := pv.Spec.Capacity[v1.ResourceStorage]
	switch {
	case pv.Spec.PersistentVolumeSource == (v1.PersistentVolumeSource{}):
		return "it has no source"
	case capacity.Sign() <= 0:
		return "its capacity is " + capacity.String()
	}
	return ""
}

func (q *query) rejectMode(pv *v1.PersistentVolume) *Rejection {
	if have := pvapi.VolumeMode(pv.Spec.VolumeMode); have != q.shelf.mode {
		return &Rejection{Reason: OtherVolumeMode, Detail: string(have)}
	}
	return nil
}

// rejectFit does not apply where both sides agree.
func (q *query) rejectFit(pv *v1.PersistentVolume) *Rejection {
	if q.agreed(pv) {
		return nil
	}
	if r := q.rejectAccessModes(pv.Spec.AccessModes); r != nil {
		return r
	}
	if have := ptr.Deref(pv.Spec.VolumeAttributesClassName, ""); have != q.shelf.attributesClass {
		return &Rejection{Reason: OtherAttributesClass, Detail: fmt.Sprintf("class %q", have)}
	}
	if have := pvapi.VolumeClass(pv); have != q.shelf.class && !PreBound(pv, q.Claim) {
		return &Rejection{Reason: OtherClass, Detail: fmt.Sprintf("class %q", have)}
	}
	have, want := pv.Spec.Capacity[v1.ResourceStorage], q.Claim.Spec.Resources.Requests[v1.ResourceStorage]
	if have.Cmp(want) < 0 {
		return &Rejection{Reason: TooSmall, Detail: fmt.Sprintf("%s of %s", have.String(), want.String())}
	}
	return nil
}

func (q *query) rejectAccessModes(have []v1.PersistentVolumeAccessMode) *Rejection {
	for _, mode := range q.Claim.Spec.AccessModes {
		if !slices.Contains(have, mode) {
			return &Rejection{Reason: OtherAccessModes, Detail: "not " + string(mode)}
		}
	}
	return nil
}

func (q *query) rejectLabels(pv *v1.PersistentVolume) *Rejection {
	if q.chosen(pv) || q.selects(pv) {
		return nil
	}
	return &Rejection{Reason: OtherLabels}
}

func (q *query) selects(pv *v1.PersistentVolume) bool {
	return q.selector.Empty() || q.selector.Matches(labels.Set(pv.Labels))
}

func (q *query) rejectNode(pv *v1.PersistentVolume) *Rejection {
	if q.NodeName == "" {
		return nil
	}
	reachable, err := claimbinding.MatchesNode(pv, q.NodeLabels, q.NodeName)
	switch {
	case err != nil:
		return &Rejection{Reason: OtherNode, Detail: err.Error()}
	case !reachable:
		return &Rejection{Reason: OtherNode, Detail: "not on " + q.NodeName}
	}
	return nil
}
