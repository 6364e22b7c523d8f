package persistentvolume

import (
	"cmp"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// Match returns the volume for a claim, by Kubernetes' rules (v1.37):
//
//   - The volume that the claim names in spec.volumeName. Its class,
//     attributes class, size, access modes and volume mode must be right; the
//     claim's selector and the volume's phase do not matter. Where the volume's
//     claimRef names the claim as well, only the volume mode must be right.
//   - Else one whose claimRef names the claim, by UID where it has one. Class,
//     labels and phase do not matter. If what fits otherwise cannot be reached
//     from the node, the claim cannot be used there, and gets no other volume.
//   - Else the smallest that is free and right in everything; of equal ones
//     the first by name. Without a node, as for a claim that is bound at once,
//     those with the fewest access modes go first, whatever their size.
//
// It differs from Kubernetes on purpose: a volume that was never marked as
// Available is taken, since a store may have nobody who marks it; a volume
// that another claim names is left to that claim; a volume with claimRef wins
// over free ones with fewer access modes; node affinity and volume mode are
// looked at whoever chose, since the pod could not start; what the API server
// would refuse (no source, no capacity or no request) is not bound.
//
// The result does not depend on the order in which volumes came. A claim that
// has a reservation is answered by its volume, one with a record by nothing
// else than that.
//
// The error is an *[UnboundError]: it matches [volume.ErrClaimUnbound] and says
// why no volume fits, or holds a *[volume.InvalidSpecError] about the claim.
func (x *Index) Match(w Wanted) (*v1.PersistentVolume, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if r := x.owners.held[IDOf(w.Claim)]; r != nil {
		return r.volume, nil
	}
	it, err := x.match(w)
	return it.pv, err
}

// ErrReserved says that a claim has a reservation already.
var ErrReserved = errors.New("a volume is being reserved for the claim already")

// Reserve is [Index.Match], and keeps the volume from every other claim until
// the reservation is committed or released. A claim cannot have two; the
// second is an *[UnboundError] that matches [ErrReserved].
func (x *Index) Reserve(w Wanted) (*Reservation, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	id := IDOf(w.Claim)
	if x.owners.held[id] != nil {
		return nil, &UnboundError{Claim: nameOf(w.Claim), Err: ErrReserved}
	}
	it, err := x.match(w)
	if err != nil {
		return nil, err
	}
	r := &Reservation{index: x, claim: id, volume: it.pv}
	x.change(it.pv.Name, func() { x.owners.reserved[it.pv.Name], x.owners.held[id] = r, r })
	return r, nil
}

// Reservation keeps a volume for a claim until it is bound. Its methods are
// safe for concurrent use; the first that ends it counts.
type Reservation struct {
	index  *Index
	claim  ClaimID
	volume *v1.PersistentVolume
}

// Volume returns the volume as it was when it was reserved.
func (r *Reservation) Volume() *v1.PersistentVolume { return r.volume }

// Commit ends the reservation of a volume that was bound: pv is the volume as
// the store answered, with its claimRef. From then on that counts.
func (r *Reservation) Commit(pv *v1.PersistentVolume) { r.end(pv) }

// Release ends the reservation and gives the volume back.
func (r *Reservation) Release() { r.end(nil) }

func (r *Reservation) end(pv *v1.PersistentVolume) {
	x := r.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.owners.held[r.claim] != r {
		return
	}
	if pv != nil {
		x.put(pv)
	}
	x.change(r.volume.Name, func() {
		delete(x.owners.held, r.claim)
		delete(x.owners.reserved, r.volume.Name)
	})
}

// match is called with the lock held.
func (x *Index) match(w Wanted) (item, error) {
	q, err := w.compile()
	if err != nil {
		return item{}, &UnboundError{Claim: nameOf(w.Claim), Err: err}
	}
	q.named = x.owners.volumeFor(q)
	if q.named != "" {
		return x.matchNamed(q)
	}
	it, away := x.matchClaimRef(q)
	if away != nil {
		return it, away.unbound(x, q)
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
	it, ok := x.volumes[q.named]
	if !ok {
		return it, &UnboundError{Claim: nameOf(q.Claim), Volume: q.named, Err: volume.ErrClaimUnbound}
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
	for name := range x.claimRefs[nameOf(q.Claim)] {
		it := x.volumes[name]
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
