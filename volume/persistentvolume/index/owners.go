package index

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// owners is what keeps a volume for a claim beside its claimRef.
type owners struct {
	// named are the claims that name a volume, names the same the other way
	// round.
	named map[string]few[types.NamespacedName, types.UID]
	names map[types.NamespacedName]string
	// held are the volumes that no claim gets now, and for whom they are kept.
	held map[string]string
}

func newOwners() owners {
	return owners{
		named: make(map[string]few[types.NamespacedName, types.UID]),
		names: make(map[types.NamespacedName]string),
		held:  make(map[string]string),
	}
}

func (o *owners) name(claim types.NamespacedName, uid types.UID, volumeName string) {
	o.named[volumeName] = o.named[volumeName].put(claim, uid)
	o.names[claim] = volumeName
}

func (o *owners) unname(claim types.NamespacedName, volumeName string) {
	delete(o.names, claim)
	if left := o.named[volumeName].without(claim); left.count > 0 {
		o.named[volumeName] = left
	} else {
		delete(o.named, volumeName)
	}
}

// isNamed reports whether all is known of a claim already.
func (o *owners) isNamed(claim types.NamespacedName, uid types.UID, volumeName string) bool {
	return o.names[claim] == volumeName && (volumeName == "" || o.named[volumeName].get(claim) == uid)
}

// volumeFor returns the only volume that a claim can have: what it names, or is
// known to name though this copy of it does not.
func (o *owners) volumeFor(q *query) string {
	if volumeName := o.names[q.id.NamespacedName]; q.named == "" && o.named[volumeName].get(q.id.NamespacedName) == q.id.UID {
		return volumeName
	}
	return q.named
}

// owned reports whether a volume is kept for any claim.
func (o *owners) owned(volumeName string) bool {
	return o.named[volumeName].count > 0 || o.held[volumeName] != ""
}

// otherThan says for whom a volume is kept, if not for this claim. One that is held is kept
// from all that ask.
func (o *owners) otherThan(q *query, pv *v1.PersistentVolume) string {
	if held := o.held[pv.Name]; held != "" {
		return held
	}
	if q.named != "" || pv.Spec.ClaimRef != nil {
		return ""
	}
	var others []types.NamespacedName
	for name, uid := range o.named[pv.Name].all() {
		if (ClaimID{name, uid}) != q.id {
			others = append(others, name)
		}
	}
	if len(others) == 0 {
		return ""
	}
	first := slices.MinFunc(others, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return first.String() + ", which names it"
}
