package index

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume/internal/pvapi"
)

// shelfKey is what a claim and its volume must have in common.
type shelfKey struct {
	class, attributesClass string
	mode                   v1.PersistentVolumeMode
}

func shelfOf(pv *v1.PersistentVolume) shelfKey {
	return shelfKey{
		class:           pvapi.VolumeClass(pv),
		attributesClass: ptr.Deref(pv.Spec.VolumeAttributesClassName, ""),
		mode:            pvapi.VolumeMode(pv.Spec.VolumeMode),
	}
}

// accessModesOf returns access modes, each once and in one order, and a name for
// the set.
func accessModesOf(modes []v1.PersistentVolumeAccessMode) (string, []v1.PersistentVolumeAccessMode) {
	if len(modes) == 1 {
		return string(modes[0]), modes
	}
	modes = slices.Compact(slices.Sorted(slices.Values(modes)))
	var name strings.Builder
	for _, mode := range modes {
		if name.Len() > 0 {
			name.WriteByte(',')
		}
		name.WriteString(string(mode))
	}
	return name.String(), modes
}

// shelf holds the free volumes of one key with the same access modes. Each is
// in several lists, so that a query finds one that holds little besides what
// it looks for.
type shelf struct {
	key         shelfKey
	name        string // of the access modes
	accessModes []v1.PersistentVolumeAccessMode
	lists       map[posting]*ordered
	// nodeKeys counts the lists for each label, or the name, of a node.
	nodeKeys map[mark]int
	count    int
}

// posting names a list: the volumes that have both marks.
type posting struct{ place, label mark }

// mark is a property of a volume, as far as it can be looked up.
type mark struct {
	kind       markKind
	key, value string
}

type markKind uint8

const (
	// Where a volume can be reached from: without node affinity anywhere, else
	// it is pinned; and also either at a label or the name that a node must
	// have, one of several, or loose where there is nothing to look up.
	anywhere markKind = iota
	pinned
	atLabel
	atName
	loose
	// The labels of a volume: any, has a key, has a key with a value; crowded
	// where there are too many labels to have a list for each.
	anyLabels
	hasKey
	hasPair
	crowded
)

// maxPostings is how many lists a volume may be in: 64 hosts, or 31 labels.
const maxPostings = 64

// postings returns the lists of a volume.
func postings(pv *v1.PersistentVolume) []posting {
	places, marks := placesOf(pv), labelMarks(pv)
	if len(places)*len(marks) > maxPostings {
		marks = []mark{{kind: anyLabels}, {kind: crowded}}
	}
	if len(places)*len(marks) > 2*maxPostings {
		places = []mark{{kind: pinned}, {kind: loose}}
	}
	all := make([]posting, 0, len(places)*len(marks))
	for _, place := range places {
		for _, label := range marks {
			all = append(all, posting{place, label})
		}
	}
	return all
}

func labelMarks(pv *v1.PersistentVolume) []mark {
	marks := make([]mark, 1, 1+2*len(pv.Labels))
	marks[0] = mark{kind: anyLabels}
	for key, value := range pv.Labels {
		marks = append(marks, mark{hasKey, key, ""}, mark{hasPair, key, value})
	}
	return marks
}

func placesOf(pv *v1.PersistentVolume) []mark {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return []mark{{kind: anywhere}}
	}
	places := []mark{{kind: pinned}}
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		in, kind := narrowest(term)
		if in == nil {
			if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
				continue // matches no node
			}
			return []mark{{kind: pinned}, {kind: loose}}
		}
		for _, value := range in.Values {
			if place := (mark{kind, in.Key, value}); !slices.Contains(places, place) {
				places = append(places, place)
			}
		}
	}
	return places
}

// narrowest returns the requirement of a term that allows the fewest values,
// all of which must hold anyway: a name, a host, then the first.
func narrowest(term v1.NodeSelectorTerm) (narrow *v1.NodeSelectorRequirement, kind markKind) {
	consider := func(all []v1.NodeSelectorRequirement, k markKind) {
		for i := range all {
			r := &all[i]
			if r.Operator != v1.NodeSelectorOpIn {
				continue
			}
			if narrow == nil || len(r.Values) < len(narrow.Values) ||
				len(r.Values) == len(narrow.Values) && kind == atLabel && narrow.Key != v1.LabelHostname && r.Key == v1.LabelHostname {
				narrow, kind = r, k
			}
		}
	}
	consider(term.MatchFields, atName)
	consider(term.MatchExpressions, atLabel)
	return narrow, kind
}

func (s *shelf) insert(it item) {
	s.count++
	for _, p := range postings(it.pv) {
		list := s.lists[p]
		if list == nil {
			list = new(ordered)
			s.lists[p] = list
			if key, ok := p.place.nodeKey(); ok {
				s.nodeKeys[key]++
			}
		}
		list.insert(it)
	}
}

func (s *shelf) remove(it item) {
	s.count--
	for _, p := range postings(it.pv) {
		list := s.lists[p]
		list.remove(it)
		if list.count > 0 {
			continue
		}
		delete(s.lists, p)
		if key, ok := p.place.nodeKey(); ok {
			if s.nodeKeys[key]--; s.nodeKeys[key] == 0 {
				delete(s.nodeKeys, key)
			}
		}
	}
}

// nodeKey is the mark without the value, for what a node has one value of.
func (m mark) nodeKey() (mark, bool) {
	return mark{kind: m.kind, key: m.key}, m.kind == atLabel || m.kind == atName
}

// best returns the first volume that fits.
func (s *shelf) best(q *query) (best item, found bool) {
	for _, list := range s.candidates(q, s.places(q)) {
		for it := range list.from(q.request) {
			if found && it.compare(best) >= 0 {
				break
			}
			if q.rejectLabels(it.pv) == nil && q.rejectNode(it.pv) == nil {
				best, found = it, true
				break
			}
		}
	}
	return best, found
}

// candidates returns lists that together hold every volume of the places whose
// labels fit, and as few others as possible.
func (s *shelf) candidates(q *query, places []mark) []*ordered {
	lists, fewest := s.listed(places, mark{kind: anyLabels})
	for i := range q.requirements {
		marks := requiredMarks(&q.requirements[i])
		if len(marks) == 0 {
			continue
		}
		if narrow, count := s.listed(places, append(marks, mark{kind: crowded})...); count < fewest {
			lists, fewest = narrow, count
		}
	}
	return lists
}

// places returns marks. A volume that the query's node can reach has one of them.
func (s *shelf) places(q *query) []mark {
	if q.NodeName == "" {
		return []mark{{kind: anywhere}, {kind: pinned}}
	}
	places := make([]mark, 2, 2+len(s.nodeKeys))
	places[0].kind, places[1].kind = anywhere, loose
	for key := range s.nodeKeys {
		if value, ok := q.nodeValue(key); ok {
			places = append(places, mark{key.kind, key.key, value})
		}
	}
	return places
}

// nodeValue returns the value of the query's node for a key, by the rules of
// [claimbinding.MatchesNode].
func (q *query) nodeValue(key mark) (string, bool) {
	if key.kind == atName {
		return q.NodeName, true
	}
	value, ok := q.NodeLabels[key.key]
	if !ok && key.key == v1.LabelHostname {
		return q.NodeName, true
	}
	return value, ok
}

// requiredMarks returns marks, each once. A volume that meets the requirement has one
// of them. No marks: every volume may meet it.
func requiredMarks(r *labels.Requirement) (marks []mark) {
	switch r.Operator() {
	case selection.In, selection.Equals, selection.DoubleEquals:
		for value := range r.Values() {
			marks = append(marks, mark{hasPair, r.Key(), value})
		}
	case selection.Exists, selection.GreaterThan, selection.LessThan:
		marks = append(marks, mark{hasKey, r.Key(), ""})
	}
	return marks
}

func (s *shelf) listed(places []mark, marks ...mark) (lists []*ordered, count int) {
	for _, place := range places {
		for _, label := range marks {
			if list := s.lists[posting{place, label}]; list != nil {
				lists = append(lists, list)
				count += list.count
			}
		}
	}
	return lists, count
}

// everything returns two lists that hold all volumes of the shelf, each once.
func (s *shelf) everything() []*ordered {
	lists, _ := s.listed([]mark{{kind: anywhere}, {kind: pinned}}, mark{kind: anyLabels})
	return lists
}
