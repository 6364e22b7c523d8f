package mounttable

import (
	"cmp"
	"iter"
	"path"
	"slices"
	"strings"

	"github.com/podvol/podvol/mount"
)

// node is one mount of a graph.
type node struct {
	// id and parent are the graph's keys: the kernel's unique ids where it has them,
	// else mountinfo's.
	id, parent uint64
	// entry is never handed out, only copies are; its slices may be shared with
	// other nodes and are never written to.
	entry mount.Entry
	// age is its place in the table: higher means newer.
	age uint64
	// seen is what the lists of entry were made of.
	seen sight
	// load is the load of the whole table that saw it last.
	load  uint64
	links [graphKeys]link
	// shown is what List shows as its options, never written to.
	shown []string
}

// graph is a set of mounts that is found by whatever is asked for, in a time that
// does not grow with the number of mounts. A changed node must be taken out and
// put in again, since the keys are made of it.
type graph struct {
	nodes map[uint64]*node
	// bySpot is what a walk along a path goes by: of mounts that have the
	// same parent and target there is one, save where targets are ambiguous.
	bySpot   bucket[spot]
	byParent bucket[uint64]
	byTarget bucket[string]
	byName   bucket[string] // the last element of the target
	bySource bucket[string]
	byDevice bucket[uint64]
	byRoot   bucket[window]
	// ordered is all nodes, oldest first; nil when it has to be made again.
	ordered []*node
}

// spot is where a mount is attached.
type spot struct {
	parent uint64
	target string
}

// window is the directory that a mount shows.
type window struct {
	device uint64
	root   string
}

const graphKeys = 7

func newGraph(size int) *graph {
	g := &graph{nodes: make(map[uint64]*node, size)}
	g.bySpot = newBucket(g, 0, (*node).spot)
	g.byParent = newBucket(g, 1, func(n *node) uint64 { return n.parent })
	g.byTarget = newBucket(g, 2, func(n *node) string { return n.entry.Target })
	g.byName = newBucket(g, 3, (*node).name)
	g.bySource = newBucket(g, 4, func(n *node) string { return n.entry.Source })
	g.byDevice = newBucket(g, 5, func(n *node) uint64 { return n.entry.Device })
	g.byRoot = newBucket(g, 6, (*node).window)
	return g
}

func (n *node) spot() spot     { return spot{n.parent, n.entry.Target} }
func (n *node) window() window { return window{n.entry.Device, n.entry.Root} }
func (n *node) name() string   { return path.Base(n.entry.Target) }

func (g *graph) add(n *node) {
	g.nodes[n.id] = n
	g.bySpot.add(n)
	g.byParent.add(n)
	g.byTarget.add(n)
	g.byName.add(n)
	g.bySource.add(n)
	g.byDevice.add(n)
	g.byRoot.add(n)
	last := len(g.ordered) - 1
	if len(g.nodes) == 1 || last >= 0 && g.ordered[last].age < n.age {
		g.ordered = append(g.ordered, n) // the usual case: a new mount
	} else {
		g.ordered = nil
	}
}

func (g *graph) remove(n *node) {
	delete(g.nodes, n.id)
	g.bySpot.remove(n)
	g.byParent.remove(n)
	g.byTarget.remove(n)
	g.byName.remove(n)
	g.bySource.remove(n)
	g.byDevice.remove(n)
	g.byRoot.remove(n)
	if i, ok := slices.BinarySearchFunc(g.ordered, n, byAge); ok {
		g.ordered = slices.Delete(g.ordered, i, i+1)
	}
}

func byAge(a, b *node) int { return cmp.Compare(a.age, b.age) }

// all returns all nodes, oldest first. It is the graph's own slice.
func (g *graph) all() []*node {
	if g.ordered == nil {
		g.ordered = make([]*node, 0, len(g.nodes))
		for _, n := range g.nodes {
			g.ordered = append(g.ordered, n)
		}
		slices.SortFunc(g.ordered, byAge)
	}
	return g.ordered
}

// below returns the nodes whose target lies below dir, oldest first. It compares one name with
// all.
func (g *graph) below(dir string) (found []*node) {
	inside := strings.TrimSuffix(dir, "/") + "/"
	for _, n := range g.all() {
		if len(n.entry.Target) > len(inside) && strings.HasPrefix(n.entry.Target, inside) {
			found = append(found, n)
		}
	}
	return found
}

// isTop reports whether a walk may begin at n: nothing it could be mounted on
// can be seen.
func (g *graph) isTop(n *node) bool {
	return n.parent == n.id || g.nodes[n.parent] == nil
}

// walk returns the mounts on the way to target from the root as the kernel
// passes them: each is mounted on the one before, and the last is the one in
// which target lies, or which is mounted there. Target is clean, absolute and
// free of links. See [MountOf], whose answer this is.
func (g *graph) walk(target string, way []*node) []*node {
	way = way[:0]
	var current *node
	for prefix := range prefixesOf(target) {
		for len(way) <= len(g.nodes) { // ends the loop on any input
			next := g.next(current, prefix)
			if next == nil {
				break
			}
			way, current = append(way, next), next
		}
	}
	return way
}

func (g *graph) next(current *node, prefix string) *node {
	if current != nil {
		return oldest(g.bySpot.all(spot{current.id, prefix}), func(n *node) bool { return n != current })
	}
	return oldest(g.byTarget.all(prefix), g.isTop)
}

func oldest(nodes iter.Seq[*node], wanted func(*node) bool) (found *node) {
	for n := range nodes {
		if wanted(n) && (found == nil || n.age < found.age) {
			found = n
		}
	}
	return found
}

// prefixesOf is [prefixes] without making a list.
func prefixesOf(target string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if !yield("/") || target == "/" {
			return
		}
		for at := 1; ; {
			length := strings.IndexByte(target[at:], '/')
			if length < 0 {
				yield(target)
				return
			}
			if !yield(target[:at+length]) {
				return
			}
			at += length + 1
		}
	}
}

// inOrder returns nodes, oldest first.
func inOrder(nodes iter.Seq[*node]) []*node {
	return slices.SortedFunc(nodes, byAge)
}

// link is the neighbours of a node in a bucket.
type link struct{ next, previous *node }

// bucket finds the nodes of a graph that have the same key. They are chained through
// links[which], so that taking one out is cheap however many there are. It is made at
// the first question: a table that is only listed needs none.
type bucket[K comparable] struct {
	graph *graph
	which int
	key   func(*node) K
	heads map[K]*node // nil before the first question
}

func newBucket[K comparable](g *graph, which int, key func(*node) K) bucket[K] {
	return bucket[K]{graph: g, which: which, key: key}
}

func (b *bucket[K]) add(n *node) {
	if b.heads == nil {
		return
	}
	key := b.key(n)
	head := b.heads[key]
	n.links[b.which] = link{next: head}
	if head != nil {
		head.links[b.which].previous = n
	}
	b.heads[key] = n
}

func (b *bucket[K]) remove(n *node) {
	if b.heads == nil {
		return
	}
	at := n.links[b.which]
	if at.next != nil {
		at.next.links[b.which].previous = at.previous
	}
	switch {
	case at.previous != nil:
		at.previous.links[b.which].next = at.next
	case at.next != nil:
		b.heads[b.key(n)] = at.next
	default:
		delete(b.heads, b.key(n))
	}
	n.links[b.which] = link{}
}

// first returns a node of a key, or nil.
func (b *bucket[K]) first(key K) *node {
	if b.heads == nil {
		b.heads = make(map[K]*node)
		for _, n := range b.graph.all() {
			b.add(n)
		}
	}
	return b.heads[key]
}

// all yields the nodes of a key in no order. The bucket must not change
// meanwhile.
func (b *bucket[K]) all(key K) iter.Seq[*node] {
	return func(yield func(*node) bool) {
		for n := b.first(key); n != nil; n = n.links[b.which].next {
			if !yield(n) {
				return
			}
		}
	}
}

func (b *bucket[K]) has(key K) bool { return b.first(key) != nil }
