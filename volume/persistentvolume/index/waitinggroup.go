package index

import (
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

// waitingGroup holds claims that fit the same free volumes, except for the size. It finds the first claim that requests no more than a size. It is
// a treap by request, then turn; each node knows the first turn below it.
type waitingGroup struct {
	like *query // any of them, also one that has left
	mark mark
	key  groupKey
	root *waitingNode
}

type waitingNode struct {
	claim       *waitingClaim
	weight      uint32
	left, right *waitingNode
	first       *waitingClaim // of all below and this
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
	for n := g.root; n != nil; {
		if n.claim.query.request.Compare(most) > 0 {
			n = n.left
			continue
		}
		first = earlier(first, n.claim)
		if n.left != nil {
			first = earlier(first, n.left.first)
		}
		n = n.right
	}
	return first
}

func earlier(a, b *waitingClaim) *waitingClaim {
	if a == nil || b != nil && b.turn < a.turn {
		return b
	}
	return a
}

func (g *waitingGroup) insert(claim *waitingClaim) {
	before, after := split(g.root, claim, false)
	one := &waitingNode{claim: claim, weight: rand.Uint32(), first: claim}
	g.root = merge(merge(before, one), after)
}

func (g *waitingGroup) remove(claim *waitingClaim) {
	before, rest := split(g.root, claim, false)
	_, after := split(rest, claim, true)
	g.root = merge(before, after)
}

// compare orders by request, then by turn, which is unique.
func (c *waitingClaim) compare(other *waitingClaim) int {
	if by := c.query.request.Compare(other.query.request); by != 0 || c.turn == other.turn {
		return by
	}
	if c.turn < other.turn {
		return -1
	}
	return 1
}

// split divides the claims up to and with a claim from the rest.
func split(n *waitingNode, at *waitingClaim, with bool) (before, after *waitingNode) {
	if n == nil {
		return nil, nil
	}
	if by := n.claim.compare(at); by < 0 || by == 0 && with {
		n.right, after = split(n.right, at, with)
		return n.update(), after
	}
	before, n.left = split(n.left, at, with)
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
	n.first = n.claim
	for _, below := range []*waitingNode{n.left, n.right} {
		if below != nil {
			n.first = earlier(n.first, below.first)
		}
	}
	return n
}
