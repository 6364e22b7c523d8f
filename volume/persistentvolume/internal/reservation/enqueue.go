package reservation

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/internal/pvapi"
)

// EnqueueClaimFor enqueues the claim that a free volume is for, and reports whether there is
// one. The volume is a candidate of the claim then.
func (t *Table) EnqueueClaimFor(volumeName string) bool {
	pv, free := t.Index.Free(volumeName)
	if !free {
		return false
	}
	t.mu.Lock()
	claim, ok := t.Waiting.Pop(pv)
	if !ok {
		claim, ok = t.Waiting.Enqueued(pv)
	}
	if ok {
		t.candidates[claim] = append(t.candidates[claim], volumeName)
	}
	t.mu.Unlock()
	if ok {
		t.Queue.Enqueue(pvapi.ClaimRef(claim))
	}
	return ok
}

// Candidates returns the candidates of a claim, once: the claim is synced now. The caller
// releases the volumes that the claim does not take ([Table.Release]).
func (t *Table) Candidates(claim types.NamespacedName) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Waiting.BeginSync(claim)
	volumes := t.candidates[claim]
	delete(t.candidates, claim)
	return volumes
}

// Release gives up a volume that was kept for a claim, or was its candidate. If the claim did not
// take it, the other claims that name it may have it, then one that waits. If none waits, the
// volume is enqueued.
func (t *Table) Release(volumeName string, from types.NamespacedName) {
	pv, exists := t.Index.Volume(volumeName)
	if !exists || pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID != "" {
		return
	}
	t.enqueueClaimsAfterPause(volumeName, from)
	if pv.Spec.ClaimRef == nil && !t.EnqueueClaimFor(volumeName) {
		t.Queue.Enqueue(pvapi.VolumeRef(volumeName))
	}
}

// Retry ends an [Assumed] entry of a claim that could not take its volume and tries again.
// Other claims may have it; without one it stays a candidate of this claim.
func (t *Table) Retry(e *Entry) {
	t.mu.Lock()
	asked := t.end(e)
	t.mu.Unlock()
	t.wake(asked)
	claim := e.claim.NamespacedName
	t.enqueueClaimsAfterPause(e.name, claim)
	if t.EnqueueClaimFor(e.name) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.candidates[claim] = append(t.candidates[claim], e.name)
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
