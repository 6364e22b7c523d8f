package diskusage

import (
	"sync"
	"sync/atomic"
)

// tree is one measurement: what its walks have in common. The first walk
// begins at the root, and every walk gives part of its work away to another one
// as long as there is a free worker. So a small tree, and one that hangs at
// once, takes one thread only.
type tree struct {
	options
	dir  string
	root file

	free    atomic.Int64 // workers that may yet begin
	walks   sync.WaitGroup
	stopped atomic.Bool
	counted atomic.Int64 // inodes, kept if these have a budget
	buffers sync.Pool

	lock  sync.Mutex
	usage Usage
	err   error               // the first
	seen  map[fileID]struct{} // files with several links
}

func newTree(dir string, o options) *tree {
	t := &tree{dir: dir, options: o, seen: make(map[fileID]struct{})}
	t.free.Store(int64(o.workers) - 1)
	return t
}

// stop ends all walks at their next look.
func (t *tree) stop(err error) {
	t.lock.Lock()
	if t.err == nil {
		t.err = err
	}
	t.lock.Unlock()
	t.stopped.Store(true)
}

// isNew reports whether a file with several names is seen for the first time.
func (t *tree) isNew(id fileID) bool {
	t.lock.Lock()
	defer t.lock.Unlock()
	if _, ok := t.seen[id]; ok {
		return false
	}
	t.seen[id] = struct{}{}
	return true
}

// afford reports whether one more inode is within the budget.
func (t *tree) afford() bool {
	if t.budget.Inodes <= 0 {
		return true
	}
	if t.counted.Add(1) <= t.budget.Inodes {
		return true
	}
	t.stop(&BudgetError{Path: t.dir, Budget: Budget{Inodes: t.budget.Inodes}})
	return false
}

// begin reports whether there is a worker for another walk, and takes it.
func (t *tree) begin() bool {
	for {
		free := t.free.Load()
		if free <= 0 {
			return false
		}
		if t.free.CompareAndSwap(free, free-1) {
			return true
		}
	}
}

// share starts another walk with work that begin has allowed.
func (t *tree) share(f frame, entries []byte) {
	t.walks.Go(func() {
		defer t.free.Add(1)
		t.newWalk(f).run(entries)
	})
}

func (t *tree) buffer() []byte {
	if b, ok := t.buffers.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, bufferSize)
}

func (t *tree) release(b []byte) {
	b = b[:bufferSize]
	t.buffers.Put(&b)
}

func (t *tree) newWalk(f frame) *walk {
	return &walk{tree: t, stack: []frame{f}, buffer: t.buffer()}
}
