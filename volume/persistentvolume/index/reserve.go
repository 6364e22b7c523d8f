package index

import (
	"errors"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/internal/pvapi"
)

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
		return nil, &UnboundError{Claim: pvapi.NameOf(w.Claim), Err: ErrReserved}
	}
	it, err := x.match(w)
	if err != nil {
		return nil, err
	}
	r := &Reservation{index: x, Claim: id, volume: it.pv}
	x.change(it.pv.Name, func() { x.owners.reserved[it.pv.Name], x.owners.held[id] = r, r })
	return r, nil
}

// Reservation keeps a volume for a claim until it is bound. Its methods are
// safe for concurrent use; the first that ends it counts.
type Reservation struct {
	index  *Index
	Claim  ClaimID
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
	if x.owners.held[r.Claim] != r {
		return
	}
	if pv != nil {
		x.put(pv)
	}
	x.change(r.volume.Name, func() {
		delete(x.owners.held, r.Claim)
		delete(x.owners.reserved, r.volume.Name)
	})
}
