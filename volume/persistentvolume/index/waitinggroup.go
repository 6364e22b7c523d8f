package index

import (
	"cmp"
	"math"
	"math/rand/v2"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// groupKey has the requirements of a claim, without its requested size. Claims of one
// shelf with equal keys are in one group.
type groupKey struct {
	accessModes, selector string
	node, nodeLabels      string
}

func groupKeyOf(q *query) groupKey {
	modes, _ := accessModesOf(q.Claim.Spec.AccessModes)
	key := groupKey{accessModes: modes, node: q.NodeName}
	if !q.selector.Empty() {
		key.selector = q.selector.String()
	}
	if q.NodeName != "" {
		key.nodeLabels = labels.Set(q.NodeLabels).String()
	}
	return key
}

// soughtMark is a mark of every volume that fits the claim.
func soughtMark(q *query) mark {
	for i := range q.requirements {
		if marks := requiredMarks(&q.requirements[i]); len(marks) == 1 {
			return marks[0]
		}
	}
	return mark{kind: anyLabels}
}

// waitingGroup holds claims that fit the same free volumes, except for the size. It finds the
// first claim that requests no more than a size. It is a treap by request, then turn; each node
// knows the first turn below it.
type waitingGroup struct {
	like *query // any of them, also one that has left
	mark mark
	key  groupKey
	root *waitingNode
}

type waitingNode struct {
	place
	claim       *waitingClaim
	weight      uint32
	left, right *waitingNode
	first       *waitingClaim // of all below and this
	firstTurn   uint64        // its turn
}

// place is where a claim is in the order of a group. The nodes have it beside the claim, so that
// a search looks up nothing elsewhere in memory.
type place struct {
	request Size
	turn    uint64
}

func placeOf(claim *waitingClaim) place { return place{claim.query.request, claim.turn} }

// compare orders by request, then by turn, which is unique.
func (p place) compare(other place) int {
	return cmp.Or(p.request.Compare(other.request), cmp.Compare(p.turn, other.turn))
}

// accepts reports whether a free volume of the same shelf would do, were it large
// enough: what [query.reject] says, without the reason.
func (g *waitingGroup) accepts(pv *v1.PersistentVolume) bool {
	q := g.like
	return q.rejectAccessModes(pv.Spec.AccessModes) == nil && q.selects(pv) && q.rejectNode(pv) == nil
}

// first returns the claim that has waited longest among the claims that request at
// most a size, or nil.
func (g *waitingGroup) first(most Size) (first *waitingClaim) {
	turn := uint64(math.MaxUint64)
	for n := g.root; n != nil; {
		if n.request.Compare(most) > 0 {
			n = n.left
			continue
		}
		if n.turn < turn {
			first, turn = n.claim, n.turn
		}
		if n.left != nil && n.left.firstTurn < turn {
			first, turn = n.left.first, n.left.firstTurn
		}
		n = n.right
	}
	return first
}

func (g *waitingGroup) insert(claim *waitingClaim) {
	one := &waitingNode{place: placeOf(claim), claim: claim, weight: rand.Uint32()}
	g.root = g.root.insert(one)
}

func (g *waitingGroup) remove(claim *waitingClaim) { g.root = g.root.remove(placeOf(claim)) }

// insert returns the tree with one node more, which is above all that are lighter.
func (n *waitingNode) insert(one *waitingNode) *waitingNode {
	switch {
	case n == nil || n.weight < one.weight:
		one.left, one.right = n.split(one.place)
		return one.update()
	case n.compare(one.place) < 0:
		n.right = n.right.insert(one)
	default:
		n.left = n.left.insert(one)
	}
	return n.update()
}

// remove returns the tree without the node of a place.
func (n *waitingNode) remove(at place) *waitingNode {
	if n == nil {
		return nil
	}
	switch by := n.compare(at); {
	case by == 0:
		return merge(n.left, n.right)
	case by < 0:
		n.right = n.right.remove(at)
	default:
		n.left = n.left.remove(at)
	}
	return n.update()
}

// split divides the claims before a place from the rest.
func (n *waitingNode) split(at place) (before, after *waitingNode) {
	if n == nil {
		return nil, nil
	}
	if n.compare(at) < 0 {
		n.right, after = n.right.split(at)
		return n.update(), after
	}
	before, n.left = n.left.split(at)
	return before, n.update()
}

// merge joins two trees. All claims of the first come before all claims of the second.
func merge(a, b *waitingNode) *waitingNode {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.weight >= b.weight:
		a.right = merge(a.right, b)
		return a.update()
	}
	b.left = merge(a, b.left)
	return b.update()
}

func (n *waitingNode) update() *waitingNode {
	n.first, n.firstTurn = n.claim, n.turn
	if below := n.left; below != nil && below.firstTurn < n.firstTurn {
		n.first, n.firstTurn = below.first, below.firstTurn
	}
	if below := n.right; below != nil && below.firstTurn < n.firstTurn {
		n.first, n.firstTurn = below.first, below.firstTurn
	}
	return n
}
