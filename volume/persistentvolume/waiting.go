package persistentvolume

import (
	"container/list"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// waitingClaims are the claims that have no volume, by what a volume for them
// must have: a new one wakes the claim that has waited longest of those that it
// would do for, and no other.
type waitingClaims struct {
	mu      sync.Mutex
	claims  map[types.NamespacedName]*waitingClaim
	byShelf map[shelfKey]*list.List // of *waitingClaim, the longest waiting first
	// offers are the volumes for which a claim was woken, or that it will try
	// again to take, until it looks.
	offers map[types.NamespacedName][]string
}

type waitingClaim struct {
	query *query
	place *list.Element // nil for one that takes no volume by itself
}

func newWaitingClaims() *waitingClaims {
	return &waitingClaims{
		claims:  make(map[types.NamespacedName]*waitingClaim),
		byShelf: make(map[shelfKey]*list.List),
		offers:  make(map[types.NamespacedName][]string),
	}
}

// add has a claim wait. It must be added before it looks for a volume, so that
// none that comes meanwhile is missed; one that waits already for the same keeps
// its place. An invalid claim waits for nothing.
func (w *waitingClaims) add(wanted Wanted) {
	if w.has(wanted) {
		return
	}
	q, err := wanted.compile()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(nameOf(wanted.Claim))
	if err != nil {
		return
	}
	claim := &waitingClaim{query: q}
	w.claims[nameOf(wanted.Claim)] = claim
	if wanted.Delayed || q.named != "" || dataSourceOf(wanted.Claim) != "" {
		return
	}
	if w.byShelf[q.shelf] == nil {
		w.byShelf[q.shelf] = list.New()
	}
	claim.place = w.byShelf[q.shelf].PushBack(claim)
}

// has reports whether a claim waits for just that.
func (w *waitingClaims) has(wanted Wanted) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.claims[nameOf(wanted.Claim)]
	return known != nil && known.query.Claim == wanted.Claim && known.query.Delayed == wanted.Delayed &&
		known.query.NodeName == "" && wanted.NodeName == "" && known.query.shelf.class == claimClass(wanted.Claim, wanted.DefaultClass)
}

// wanted returns what a claim waits for.
func (w *waitingClaims) wanted(name types.NamespacedName) (Wanted, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.claims[name]
	if known == nil {
		return Wanted{}, false
	}
	return known.query.Wanted, true
}

// done says that a claim does not wait any more.
func (w *waitingClaims) done(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(name)
}

func (w *waitingClaims) remove(name types.NamespacedName) {
	claim := w.claims[name]
	if claim == nil {
		return
	}
	delete(w.claims, name)
	if claim.place == nil {
		return
	}
	key := claim.query.shelf
	w.byShelf[key].Remove(claim.place)
	if w.byShelf[key].Len() == 0 {
		delete(w.byShelf, key)
	}
}

// offer returns the claim that a free volume is for, which waits no longer but
// has to look; and notes why.
func (w *waitingClaims) offer(pv *v1.PersistentVolume) (types.NamespacedName, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting := w.byShelf[shelfOf(pv)]
	if waiting == nil {
		return types.NamespacedName{}, false
	}
	for e := waiting.Front(); e != nil; e = e.Next() {
		q := e.Value.(*waitingClaim).query
		if q.reject(pv, "") != nil {
			continue
		}
		name := nameOf(q.Claim)
		w.remove(name)
		w.offers[name] = append(w.offers[name], pv.Name)
		return name, true
	}
	return types.NamespacedName{}, false
}

// keep notes a volume that a claim could not take and will try again.
func (w *waitingClaims) keep(name types.NamespacedName, volumeName string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.offers[name] = append(w.offers[name], volumeName)
}

// offered returns the volumes for which a claim was woken, once.
func (w *waitingClaims) offered(name types.NamespacedName) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	volumes := w.offers[name]
	delete(w.offers, name)
	return volumes
}

// ofClass returns the waiting claims that have a class. Those that name none
// have the class "".
func (w *waitingClaims) ofClass(class string) (names []types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, claim := range w.claims {
		if claim.query.shelf.class == class {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b types.NamespacedName) int { return slices.Compare([]byte(a.String()), []byte(b.String())) })
	return names
}
