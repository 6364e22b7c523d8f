package index

import (
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/internal/pvapi"
)

// Waiting are the claims that have no volume, grouped by their requirements. A new
// volume wakes one claim: of the claims that it fits, the one that has waited
// longest. The time of that search hardly grows with the number of claims.
type Waiting struct {
	mu     sync.Mutex
	claims map[types.NamespacedName]*waitingClaim
	// turns are the claims' places in line, also of enqueued claims.
	turns  map[types.NamespacedName]turn
	latest uint64
	// groups are by the mark that finds them, then by all other requirements.
	groups map[shelfKey]map[mark]map[groupKey]*waitingGroup
	// absent has, for a class that did not exist, the turn of the last search for it.
	absent map[string]uint64
	// enqueued are claims that were enqueued for a volume and are not synced yet.
	enqueued map[types.NamespacedName]*waitingClaim
}

// maxEnqueued is how many enqueued claims are checked for a volume that no waiting claim
// fits.
const maxEnqueued = 8

type turn struct {
	uid    types.UID
	number uint64
}

type waitingClaim struct {
	query *query
	turn  uint64
	group *waitingGroup // nil for a claim that no volume is searched for
}

// NewWaiting returns a set without claims.
func NewWaiting() *Waiting {
	return &Waiting{
		claims:   make(map[types.NamespacedName]*waitingClaim),
		turns:    make(map[types.NamespacedName]turn),
		groups:   make(map[shelfKey]map[mark]map[groupKey]*waitingGroup),
		absent:   make(map[string]uint64),
		enqueued: make(map[types.NamespacedName]*waitingClaim),
	}
}

// Now returns the next turn number: a claim that comes now gets it.
func (w *Waiting) Now() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.latest++
	return w.latest
}

// IsAbsent reports whether a class was searched in vain after a claim had come:
// [Waiting.SetAbsent] notes that.
func (w *Waiting) IsAbsent(class string, claim *v1.PersistentVolumeClaim) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	came := w.turns[pvapi.NameOf(claim)]
	return came.uid == claim.UID && came.number > 0 && w.absent[class] > came.number
}

// SetAbsent notes that a class was not there at a time ([Waiting.Now]).
func (w *Waiting) SetAbsent(class string, when uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.absent[class] = max(w.absent[class], when)
}

// Add has a claim wait. It must be added before it looks for a volume, so that
// none that comes meanwhile is missed; one that has waited before, and has not got
// a volume since, keeps its turn. An invalid claim waits for nothing.
func (w *Waiting) Add(wanted Wanted) {
	if w.has(wanted) {
		return
	}
	q, err := wanted.compile()
	w.mu.Lock()
	defer w.mu.Unlock()
	name := pvapi.NameOf(wanted.Claim)
	w.remove(name)
	if err != nil {
		delete(w.turns, name)
		return
	}
	if w.turns[name].uid != q.id.UID || w.turns[name].number == 0 {
		w.latest++
		w.turns[name] = turn{q.id.UID, w.latest}
	}
	claim := &waitingClaim{query: q, turn: w.turns[name].number}
	w.claims[name] = claim
	if wanted.Delayed || q.named != "" || DataSourceOf(wanted.Claim) != "" {
		return
	}
	claim.group = w.groupOf(q)
	claim.group.insert(claim)
}

// groupOf returns the group of a claim, which may be a new one.
func (w *Waiting) groupOf(q *query) *waitingGroup {
	marks := w.groups[q.shelf]
	if marks == nil {
		marks = make(map[mark]map[groupKey]*waitingGroup)
		w.groups[q.shelf] = marks
	}
	by, key := soughtMark(q), groupKeyOf(q)
	if marks[by] == nil {
		marks[by] = make(map[groupKey]*waitingGroup)
	}
	group := marks[by][key]
	if group == nil {
		group = &waitingGroup{like: q, mark: by, key: key}
		marks[by][key] = group
	}
	return group
}

// has reports whether a claim waits for just that.
func (w *Waiting) has(wanted Wanted) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.claims[pvapi.NameOf(wanted.Claim)]
	return known != nil && known.query.Claim == wanted.Claim && known.query.Delayed == wanted.Delayed &&
		known.query.NodeName == wanted.NodeName && maps.Equal(known.query.NodeLabels, wanted.NodeLabels) &&
		known.query.shelf.class == pvapi.ClaimClass(wanted.Claim, wanted.DefaultClass)
}

// Wanted returns what a claim waits for.
func (w *Waiting) Wanted(name types.NamespacedName) (Wanted, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.claims[name]
	if known == nil {
		return Wanted{}, false
	}
	return known.query.Wanted, true
}

// Done says that a claim does not wait any more.
func (w *Waiting) Done(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(name)
	delete(w.turns, name)
}

// Pause is for a claim that tries to take a volume: until it is added again it is
// enqueued for no other.
func (w *Waiting) Pause(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(name)
}

func (w *Waiting) remove(name types.NamespacedName) {
	claim := w.claims[name]
	if claim == nil {
		return
	}
	delete(w.claims, name)
	group := claim.group
	if group == nil {
		return
	}
	group.remove(claim)
	if group.root != nil {
		return
	}
	marks := w.groups[claim.query.shelf]
	delete(marks[group.mark], group.key)
	if len(marks[group.mark]) == 0 {
		delete(marks, group.mark)
	}
	if len(marks) == 0 {
		delete(w.groups, claim.query.shelf)
	}
}

// Pop returns the claim that gets a free volume. The claim does not wait any more; the
// caller enqueues it.
func (w *Waiting) Pop(pv *v1.PersistentVolume) (types.NamespacedName, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := w.first(pv)
	if first == nil {
		return types.NamespacedName{}, false
	}
	name := pvapi.NameOf(first.query.Claim)
	w.remove(name)
	w.enqueued[name] = first
	return name, true
}

// first returns the claim that has waited longest for a volume like this one, or nil.
func (w *Waiting) first(pv *v1.PersistentVolume) (first *waitingClaim) {
	marks := w.groups[shelfOf(pv)]
	if len(marks) == 0 {
		return nil
	}
	capacity := SizeOf(pv.Spec.Capacity[v1.ResourceStorage])
	for _, m := range labelMarks(pv) {
		for _, group := range marks[m] {
			claim := group.first(capacity)
			if claim != nil && (first == nil || claim.turn < first.turn) && group.accepts(pv) {
				first = claim
			}
		}
	}
	return first
}

// Enqueued is for a free volume that no claim waits for: a claim that was enqueued for
// another volume, which may be taken by now, may have this one instead.
func (w *Waiting) Enqueued(pv *v1.PersistentVolume) (types.NamespacedName, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	asked := 0
	for name, claim := range w.enqueued {
		if asked++; asked > maxEnqueued {
			break
		}
		if claim.query.shelf == shelfOf(pv) && claim.query.reject(pv, "") == nil {
			return name, true
		}
	}
	return types.NamespacedName{}, false
}

// BeginSync says that a claim is synced now: it is enqueued for no further volume before it
// waits again.
func (w *Waiting) BeginSync(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.enqueued, name)
}

// OfClass returns the waiting claims that have a class. Those that name none
// have the class "".
func (w *Waiting) OfClass(class string) (names []types.NamespacedName) {
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
