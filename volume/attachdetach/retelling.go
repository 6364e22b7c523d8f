package attachdetach

import (
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/internal/work"
)

// retelling has what nodes were told last, to see that another writer has undone it. That is
// written again after a pause that grows: two controllers whose caches differ would otherwise
// undo each other's lists as fast as the API answers. Its zero value has told nothing.
type retelling struct {
	mu    sync.Mutex
	nodes map[types.NodeName]*told
}

// told is the list that a node was told last.
type told struct {
	node    types.UID
	list    []v1.AttachedVolume
	backoff work.Backoff
	// at is when it may be told again; zero: nobody has undone it since.
	at time.Time
}

// pause returns how long to wait before a node that lists something else is told a list; 0: it
// may be told. isNews: the wait begins.
func (r *retelling) pause(node *v1.Node, list []v1.AttachedVolume) (wait time.Duration, isNews bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.nodes[types.NodeName(node.Name)]
	if last == nil || last.node != node.UID || !slices.Equal(last.list, list) {
		return 0, false
	}
	if isNews = last.at.IsZero(); isNews {
		last.at = time.Now().Add(last.backoff.Fail(work.OperationPause, nil))
	}
	return max(0, time.Until(last.at)), isNews
}

// note notes what a node was told.
func (r *retelling) note(node *v1.Node, list []v1.AttachedVolume) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.nodes[types.NodeName(node.Name)]
	if last == nil || last.node != node.UID || !slices.Equal(last.list, list) {
		last = &told{node: node.UID, list: list}
		if r.nodes == nil {
			r.nodes = make(map[types.NodeName]*told)
		}
		r.nodes[types.NodeName(node.Name)] = last
	}
	last.at = time.Time{}
}

// forget is for a node that is gone.
func (r *retelling) forget(node types.NodeName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.nodes, node)
}
