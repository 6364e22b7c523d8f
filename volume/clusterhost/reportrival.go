package clusterhost

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

const (
	// toleratedRivalry is how often another writer may replace the list, each time
	// within rivalryMemory of the last, before that is more than an accident.
	toleratedRivalry = 3
	rivalryMemory    = time.Minute
)

// rival is another process that reports for the node as well, or seems to.
type rival struct {
	// written is the list that was written last; nil: it has been replaced.
	written      []v1.UniqueVolumeName
	times        int
	last, warned time.Time
}

// rivalry is the pause before another writer's list is replaced; 0: none is
// needed.
func (r *report) rivalry() pause {
	o := &r.rival
	if o.written == nil || lists(r.node, o.written) {
		return pause{}
	}
	now := time.Now()
	if now.Sub(o.last) > rivalryMemory {
		o.times = 0
	}
	o.written, o.last = nil, now
	o.times++
	if o.times <= toleratedRivalry {
		return pause{}
	}
	if now.Sub(o.warned) > rivalryMemory {
		o.warned = now
		r.logger.Warn("another process keeps replacing the volumes in use of the node: only one process may report them", "node", r.ref.Name, "times", o.times, "theirs", r.node.Status.VolumesInUse)
	}
	return pause{growing(firstConflict, lastConflict, o.times-toleratedRivalry), noNews}
}
