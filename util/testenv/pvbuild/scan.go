package pvbuild

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// Scan is the rules of matching once more, told as plainly as can be: it looks
// at every volume. The index must choose the same.
type Scan struct {
	Volumes  []*v1.PersistentVolume
	Claims   []*v1.PersistentVolumeClaim
	Reserved map[string]index.ClaimID
}

// Match returns the volume for a claim, or how many volumes were refused for
// which reason.
func (s *Scan) Match(w index.Wanted) (*v1.PersistentVolume, map[index.Reason]int) {
	id, named := index.IDOf(w.Claim), w.Claim.Spec.VolumeName
	for name, owner := range s.Reserved {
		if owner == id {
			return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
		}
	}
	for _, c := range s.Claims {
		if named == "" && index.IDOf(c) == id {
			named = c.Spec.VolumeName
		}
	}
	selector := labels.Everything()
	if w.Claim.Spec.Selector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(w.Claim.Spec.Selector); err != nil && named == "" {
			return nil, nil
		}
	}
	var chosen, free []*v1.PersistentVolume
	elsewhere, refused := 0, make(map[index.Reason]int)
	for _, pv := range s.Volumes {
		if named != "" && pv.Name != named {
			continue
		}
		mine := namesClaim(pv, id)
		reason := s.refuse(w, named, selector, pv)
		switch {
		case reason == index.OtherNode && mine && named == "":
			elsewhere++
		case reason == "" && (mine || named != ""):
			chosen = append(chosen, pv)
		case reason == "":
			free = append(free, pv)
		}
		if reason != "" {
			refused[reason]++
		}
	}
	switch {
	case len(chosen) > 0:
		return slices.MinFunc(chosen, Smaller), nil
	case elsewhere > 0:
		return nil, map[index.Reason]int{index.OtherNode: elsewhere}
	case w.Delayed && named == "":
		return nil, nil
	case len(free) == 0:
		return nil, refused
	case w.NodeName != "":
		return slices.MinFunc(free, Smaller), nil
	}
	return slices.MinFunc(free, func(a, b *v1.PersistentVolume) int {
		return cmp.Or(cmp.Compare(modeCount(a), modeCount(b)), Smaller(a, b))
	}), nil
}

func (s *Scan) refuse(w index.Wanted, named string, selector labels.Selector, pv *v1.PersistentVolume) index.Reason {
	id := index.IDOf(w.Claim)
	mine := namesClaim(pv, id)
	_, reserved := s.Reserved[pv.Name]
	size, request := pv.Spec.Capacity[v1.ResourceStorage], w.Claim.Spec.Resources.Requests[v1.ResourceStorage]
	free := mine || named != "" // free to ignore what nobody chose
	switch {
	case reserved, pv.Spec.ClaimRef != nil && !mine,
		pv.Spec.ClaimRef == nil && named == "" && s.namedByOther(pv.Name, id):
		return index.BoundElsewhere
	case pv.DeletionTimestamp != nil && (named == "" || !mine || pv.Spec.ClaimRef.UID == ""), !free && (pv.Status.Phase == v1.VolumeReleased || pv.Status.Phase == v1.VolumeFailed):
		return index.NotAvailable
	case size.Sign() <= 0 || pv.Spec.PersistentVolumeSource == (v1.PersistentVolumeSource{}):
		return index.Invalid
	case isBlock(pv.Spec.VolumeMode) != isBlock(w.Claim.Spec.VolumeMode):
		return index.OtherVolumeMode
	}
	if named == "" || !mine {
		switch {
		case slices.ContainsFunc(w.Claim.Spec.AccessModes, func(m v1.PersistentVolumeAccessMode) bool {
			return !slices.Contains(pv.Spec.AccessModes, m)
		}):
			return index.OtherAccessModes
		case deref(pv.Spec.VolumeAttributesClassName) != deref(w.Claim.Spec.VolumeAttributesClassName):
			return index.OtherAttributesClass
		case !mine && classOfVolume(pv) != classOfClaim(w):
			return index.OtherClass
		case size.Cmp(request) < 0:
			return index.TooSmall
		case !free && !selector.Matches(labels.Set(pv.Labels)):
			return index.OtherLabels
		}
	}
	if w.NodeName != "" {
		if ok, err := claimbinding.MatchesNode(pv, w.NodeLabels, w.NodeName); !ok || err != nil {
			return index.OtherNode
		}
	}
	return ""
}

func (s *Scan) namedByOther(volumeName string, id index.ClaimID) bool {
	return slices.ContainsFunc(s.Claims, func(c *v1.PersistentVolumeClaim) bool {
		return c.Spec.VolumeName == volumeName && index.IDOf(c) != id
	})
}

func namesClaim(pv *v1.PersistentVolume, id index.ClaimID) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.Namespace == id.Namespace && ref.Name == id.Name && (ref.UID == "" || ref.UID == id.UID)
}

// Smaller compares volumes by size, then by name.
func Smaller(a, b *v1.PersistentVolume) int {
	sizeA, sizeB := a.Spec.Capacity[v1.ResourceStorage], b.Spec.Capacity[v1.ResourceStorage]
	return cmp.Or(sizeA.Cmp(sizeB), cmp.Compare(a.Name, b.Name))
}

func modeCount(pv *v1.PersistentVolume) int {
	distinct := make(map[v1.PersistentVolumeAccessMode]bool)
	for _, m := range pv.Spec.AccessModes {
		distinct[m] = true
	}
	return len(distinct)
}

func isBlock(mode *v1.PersistentVolumeMode) bool {
	return mode != nil && *mode == v1.PersistentVolumeBlock
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

const betaClass = "volume.beta.kubernetes.io/storage-class"

func classOfVolume(pv *v1.PersistentVolume) string {
	if name, ok := pv.Annotations[betaClass]; ok {
		return name
	}
	return pv.Spec.StorageClassName
}

func classOfClaim(w index.Wanted) string {
	name, annotated := w.Claim.Annotations[betaClass]
	switch {
	case annotated:
		return name
	case w.Claim.Spec.StorageClassName != nil:
		return *w.Claim.Spec.StorageClassName
	}
	return w.DefaultClass
}
