package attachdetach

import (
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// telling has the nodes that are being told what is attached to them: a write of their status
// is under way, or its answer was lost. Until it is known what the node was told, no volume of
// it is let go. Its zero value has none.
type telling struct {
	mu sync.Mutex
	// nodes has, for each of them, the volumes to look at again afterwards.
	nodes map[types.NodeName]map[v1.UniqueVolumeName]bool
}

// begin notes that a node is about to be told, and reports whether the answer to the last
// write is still unknown.
func (t *telling) begin(node types.NodeName) (unanswered bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, unanswered = t.nodes[node]; unanswered {
		return true
	}
	if t.nodes == nil {
		t.nodes = make(map[types.NodeName]map[v1.UniqueVolumeName]bool)
	}
	t.nodes[node] = make(map[v1.UniqueVolumeName]bool)
	return false
}

// end notes that it is known what a node was told, and returns the volumes that have waited
// for it.
func (t *telling) end(node types.NodeName) []v1.UniqueVolumeName {
	t.mu.Lock()
	defer t.mu.Unlock()
	waited := slices.Collect(maps.Keys(t.nodes[node]))
	delete(t.nodes, node)
	return waited
}

// letGo reports whether a volume of a node may be let go: isFree says it, while the node is
// not told anything. If it is just being told, the volume waits for the end of that.
func (t *telling) letGo(node types.NodeName, volume v1.UniqueVolumeName, isFree func() bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if waiting, underWay := t.nodes[node]; underWay {
		waiting[volume] = true
		return false
	}
	return isFree()
}
