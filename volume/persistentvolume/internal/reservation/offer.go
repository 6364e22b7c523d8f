package reservation

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/internal/pvapi"
)

// Offer enqueues the claim that a volume is for, if the volume is free, and reports whether
// there is one.
func (t *Table) Offer(volumeName string) bool {
	pv, free := t.Index.Free(volumeName)
	if !free {
		return false
	}
	t.mu.Lock()
	claim, ok := t.Waiting.Offer(pv)
	if !ok {
		claim, ok = t.Waiting.OfferWoken(pv)
	}
	if ok {
		t.offers[claim] = append(t.offers[claim], volumeName)
	}
	t.mu.Unlock()
	if ok {
		t.Queue.Enqueue(pvapi.ClaimRef(claim))
	}
	return ok
}

// Offered returns the volumes that a claim was offered, once: it is synced now. The caller
// releases the volumes that the claim does not take ([Table.Release]).
func (t *Table) Offered(claim types.NamespacedName) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Waiting.Looks(claim)
	volumes := t.offers[claim]
	delete(t.offers, claim)
	return volumes
}

// Release gives up a volume that was kept for a claim, or offered to it. If the claim did not
// take it, the other claims that name it may have it, then one that waits. If none waits, the
// volume is enqueued.
func (t *Table) Release(volumeName string, from types.NamespacedName) {
	pv, exists := t.Index.Volume(volumeName)
	if !exists || pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID != "" {
		return
	}
	t.enqueueClaimsAfterPause(volumeName, from)
	if pv.Spec.ClaimRef == nil && !t.Offer(volumeName) {
		t.Queue.Enqueue(pvapi.VolumeRef(volumeName))
	}
}

// Retry ends an [Assumed] entry of a claim that could not take its volume and tries again.
// Others may have it; for want of one it is still offered to this claim.
func (t *Table) Retry(e *Entry) {
	t.mu.Lock()
	asked := t.end(e)
	t.mu.Unlock()
	t.wake(asked)
	claim := e.claim.NamespacedName
	t.enqueueClaimsAfterPause(e.name, claim)
	if t.Offer(e.name) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.offers[claim] = append(t.offers[claim], e.name)
}

// enqueueClaimsAfterPause enqueues the claims but one that mean a volume.
func (t *Table) enqueueClaimsAfterPause(volumeName string, but types.NamespacedName) {
	for _, claim := range t.Index.ClaimsOf(volumeName, but) {
		t.Queue.EnqueueAfterPause(pvapi.ClaimRef(claim))
	}
}

func (t *Table) enqueueClaimsOf(volumeName string) {
	for _, claim := range t.Index.ClaimsOf(volumeName, types.NamespacedName{}) {
		t.Queue.Enqueue(pvapi.ClaimRef(claim))
	}
}
