package index

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/pvapi"
)

// Match returns the volume for a claim, by Kubernetes' rules (v1.37):
//
//   - The volume that the claim names in spec.volumeName. Its class, attributes class, size,
//     access modes and volume mode must be right; the claim's selector and the volume's
//     phase do not matter. If the volume's claimRef names the claim as well, only the volume
//     mode must be right.
//   - Else one whose claimRef names the claim, by UID where it has one. Class, labels and
//     phase do not matter. If it cannot be reached from the node, the claim cannot be used
//     there, and gets no other volume.
//   - Else, for a claim with a data source, none: see [ErrNeedsData].
//   - Else the smallest that is free and right in everything; of equal ones the first by
//     name. Without a node, as for a claim that is bound at once, volumes with the fewest
//     access modes go first, whatever their size.
//
// It differs from Kubernetes on purpose:
//
//   - A volume that was never marked as Available is taken, since a store may have no
//     controller that marks it.
//   - A volume that another claim names is left to that claim.
//   - A volume with claimRef wins over free ones with fewer access modes.
//   - Node affinity and volume mode are always checked, since the pod could not start.
//   - A claim with a data source gets no free volume.
//   - Objects that the API server would refuse (no source, no capacity or no request) are
//     not bound.
//
// The result does not depend on the order in which volumes came. A volume that is held
// ([Index.Hold]) is no claim's.
//
// The error is an *[UnboundError]: it matches [claimbinding.ErrUnbound] and says why no
// volume fits, matches [ErrWaitsForConsumer] or [ErrNeedsData], or holds a
// *[volume.InvalidSpecError] about the claim.
func (x *Index) Match(w Wanted) (*v1.PersistentVolume, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	it, err := x.match(w)
	return it.pv, err
}

// match is called with the lock held.
func (x *Index) match(w Wanted) (item, error) {
	q, err := w.compile()
	if err != nil {
		return item{}, &UnboundError{Claim: pvapi.NameOf(w.Claim), Err: err}
	}
	q.named = x.owners.volumeFor(q)
	if q.named != "" {
		return x.matchNamed(q)
	}
	it, away := x.matchClaimRef(q)
	if away != nil {
		return it, away.unbound(x, q)
	}
	if it.pv == nil && q.Delayed {
		return it, &UnboundError{Claim: pvapi.NameOf(q.Claim), Err: ErrWaitsForConsumer}
	}
	if it.pv == nil && DataSourceOf(q.Claim) != "" {
		return it, &UnboundError{Claim: pvapi.NameOf(q.Claim), Err: needsData(q.Claim)}
	}
	if it.pv == nil {
		it = x.matchFree(q)
	}
	if it.pv == nil {
		return it, x.explain(q)
	}
	return it, nil
}

func (x *Index) matchNamed(q *query) (item, error) {
	named, ok := x.volumes[q.named]
	it := named.item
	if !ok {
		return it, &UnboundError{Claim: pvapi.NameOf(q.Claim), Volume: q.named, Err: claimbinding.ErrUnbound}
	}
	if r := q.reject(it.pv, x.owners.otherThan(q, it.pv)); r != nil {
		found := make(tally)
		found.add(r.Reason, it)
		return item{}, found.unbound(x, q)
	}
	return it, nil
}

// matchClaimRef looks at the volumes whose claimRef names the claim. away has
// those that would do on another node, where none does here.
func (x *Index) matchClaimRef(q *query) (best item, away tally) {
	for name := range x.claimRefs[pvapi.NameOf(q.Claim)].all() {
		it := x.volumes[name].item
		switch r := q.reject(it.pv, x.owners.otherThan(q, it.pv)); {
		case r == nil && (best.pv == nil || it.compare(best) < 0):
			best = it
		case r != nil && r.Reason == OtherNode:
			if away == nil {
				away = make(tally)
			}
			away.add(OtherNode, it)
		}
	}
	if best.pv != nil {
		return best, nil
	}
	return best, away
}

// matchFree returns the best of the free volumes, or nothing.
func (x *Index) matchFree(q *query) (best item) {
	var fitting []*shelf
	for _, s := range x.shelves[q.shelf] {
		if q.rejectAccessModes(s.accessModes) == nil {
			fitting = append(fitting, s)
		}
	}
	if q.NodeName == "" {
		slices.SortFunc(fitting, func(a, b *shelf) int { return cmp.Compare(len(a.accessModes), len(b.accessModes)) })
	}
	for i, s := range fitting {
		if q.NodeName == "" && best.pv != nil && len(s.accessModes) > len(fitting[i-1].accessModes) {
			break
		}
		if it, ok := s.best(q); ok && (best.pv == nil || it.compare(best) < 0) {
			best = it
		}
	}
	return best
}
