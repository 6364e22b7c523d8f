// Package claimindex finds the volumes of a claim, so that a look-up costs what it finds and
// not the size of the node.
package claimindex

import (
	"iter"
	"maps"

	"k8s.io/apimachinery/pkg/types"
)

// Index has the holders of claims, such as the volumes of pods. Its zero value is ready. It is
// not safe for concurrent use.
type Index[H comparable] struct {
	holders map[types.NamespacedName]map[H]struct{}
	claims  map[H]types.NamespacedName
}

// Set notes which claim a holder has now; an empty one: none.
func (x *Index[H]) Set(h H, claim types.NamespacedName) {
	before := x.claims[h]
	if claim == before {
		return
	}
	delete(x.holders[before], h)
	if len(x.holders[before]) == 0 {
		delete(x.holders, before)
	}
	if claim == (types.NamespacedName{}) {
		delete(x.claims, h)
		return
	}
	if x.holders == nil {
		x.holders, x.claims = make(map[types.NamespacedName]map[H]struct{}), make(map[H]types.NamespacedName)
	}
	if x.holders[claim] == nil {
		x.holders[claim] = make(map[H]struct{})
	}
	x.holders[claim][h], x.claims[h] = struct{}{}, claim
}

// Of returns the holders of a claim, in no order.
func (x *Index[H]) Of(claim types.NamespacedName) iter.Seq[H] { return maps.Keys(x.holders[claim]) }
