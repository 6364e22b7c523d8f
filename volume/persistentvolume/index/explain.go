package index

import (
	"iter"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/pvapi"
)

// tally counts volumes by the reason why a claim cannot have them, and keeps
// the first of each.
type tally map[Reason]*tallied

type tallied struct {
	count int
	first []item // at most maxNamed, in order
}

func (t tally) add(reason Reason, it item) {
	t.addAll(reason, 1, func(yield func(item) bool) { yield(it) })
}

// addAll counts volumes. They are the first of some, each of which is in order.
func (t tally) addAll(reason Reason, count int, some ...iter.Seq[item]) {
	if count == 0 {
		return
	}
	all := t[reason]
	if all == nil {
		all = new(tallied)
		t[reason] = all
	}
	all.count += count
	for _, seq := range some {
		left := count
		for it := range seq {
			at, _ := slices.BinarySearchFunc(all.first, it, item.compare)
			if at == MaxNamed || left == 0 {
				break
			}
			left--
			all.first = slices.Insert(all.first, at, it)
			all.first = all.first[:min(len(all.first), MaxNamed)]
		}
	}
}

// unbound is the error of a claim, with the reasons in order of their first
// volume.
func (t tally) unbound(x *Index, q *query) *UnboundError {
	failed := &UnboundError{Claim: pvapi.NameOf(q.Claim), Volume: q.named, Err: claimbinding.ErrUnbound}
	reasons := slices.SortedFunc(maps.Keys(t), func(a, b Reason) int { return t[a].first[0].compare(t[b].first[0]) })
	for _, reason := range reasons {
		group := Rejected{Reason: reason, Count: t[reason].count}
		for _, it := range t[reason].first {
			example := Rejection{Volume: it.pv.Name, Reason: reason}
			if r := q.reject(it.pv, x.owners.otherThan(q, it.pv)); r != nil {
				example.Detail = r.Detail
			}
			group.First = append(group.First, example)
		}
		failed.Rejected = append(failed.Rejected, group)
	}
	return failed
}

// explain says why none of the volumes fits. It counts lists rather than look at
// volumes, except where a selector must be compared. Volumes made for other
// claims would only hide the rest.
func (x *Index) explain(q *query) *UnboundError {
	t := make(tally)
	mine, taken := x.claimRefs[pvapi.NameOf(q.Claim)], x.taken.count
	for name := range mine.all() {
		it := x.volumes[name].item
		if x.volumes[name].side == &x.taken {
			taken--
		}
		if r := q.reject(it.pv, x.owners.otherThan(q, it.pv)); r != nil {
			t.add(r.Reason, it)
		}
	}
	others := filter(x.taken.all(), func(it item) bool { return !mine.get(it.pv.Name) })
	t.addAll(BoundElsewhere, taken, others)
	t.addAll(NotAvailable, x.unavailable.count, x.unavailable.all())
	t.addAll(Invalid, x.invalid.count, x.invalid.all())
	for key, byModes := range x.shelves {
		for _, s := range byModes {
			if reason := q.rejectShelf(key, s.accessModes); reason != "" {
				for _, list := range s.everything() {
					t.addAll(reason, list.count, list.all())
				}
				continue
			}
			t.addShelf(q, s)
		}
	}
	return t.unbound(x, q)
}

// rejectShelf says why the claim can have no volume of a shelf, or nothing.
func (q *query) rejectShelf(key shelfKey, modes []v1.PersistentVolumeAccessMode) Reason {
	switch {
	case key.mode != q.shelf.mode:
		return OtherVolumeMode
	case q.rejectAccessModes(modes) != nil:
		return OtherAccessModes
	case key.attributesClass != q.shelf.attributesClass:
		return OtherAttributesClass
	case key.class != q.shelf.class:
		return OtherClass
	}
	return ""
}

// addShelf counts the volumes of a shelf that has none for the claim, and would
// have by its key.
func (t tally) addShelf(q *query, s *shelf) {
	fit, selected := 0, 0
	var large, others []iter.Seq[item]
	for _, list := range s.everything() {
		small := list.smaller(q.request)
		t.addAll(TooSmall, small, list.all())
		fit += list.count - small
		large = append(large, list.from(q.request))
		others = append(others, filter(list.from(q.request), func(it item) bool { return !q.selects(it.pv) }))
	}
	if q.selector.Empty() {
		t.addAll(OtherNode, fit, large...)
		return
	}
	for _, list := range s.candidates(q, []mark{{kind: anywhere}, {kind: pinned}}) {
		for it := range filter(list.from(q.request), func(it item) bool { return q.selects(it.pv) }) {
			selected++
			t.add(OtherNode, it)
		}
	}
	t.addAll(OtherLabels, fit-selected, others...)
}

func filter(seq iter.Seq[item], keep func(item) bool) iter.Seq[item] {
	return func(yield func(item) bool) {
		for it := range seq {
			if keep(it) && !yield(it) {
				return
			}
		}
	}
}
