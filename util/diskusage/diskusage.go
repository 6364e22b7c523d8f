// Package diskusage measures the space that a directory tree occupies.
//
// Like every package below util, it carries no promise of compatibility.
package diskusage

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/podvol/podvol/util/treewalk"
)

// Usage is what a tree occupies.
type Usage struct {
	// Bytes is the space of all files and directories on disk, in bytes: what
	// "du -s -x -B1" says. Holes do not count.
	Bytes int64
	// Inodes are the files, directories and links, the root included.
	Inodes int64
}

// Budget bounds a measurement. A zero field bounds nothing.
type Budget struct {
	// Inodes is how many inodes are counted at most.
	Inodes int64
	// Time is how long it may take. It is checked between system calls.
	Time time.Duration
}

// BudgetError says that a measurement has used up its budget. The count until
// then is returned beside it: the tree is at least that large.
type BudgetError struct {
	// Path is the root of the tree.
	Path string
	// Budget is the given time; its other field than the one that was used up is
	// zero.
	Budget Budget
}

func (e *BudgetError) Error() string {
	if e.Budget.Inodes > 0 {
		return fmt.Sprintf("measuring %s: it has more than %d files and directories, and no more are counted", e.Path, e.Budget.Inodes)
	}
	return fmt.Sprintf("measuring %s: it takes longer than %v", e.Path, e.Budget.Time)
}

// maxWorkers bounds the threads of one measurement, also of one that hangs.
const maxWorkers = 4

// Walk measures the tree at dir. A link at dir is followed; links beneath it are not. A
// file with several names in the tree counts once. Mounts beneath dir do not count,
// whatever their file system.
//
//   - The tree may change meanwhile: files that disappear or are moved are counted or not.
//   - Neither the depth of the tree nor the number of its files costs file descriptors. As
//     many threads as there are processors walk, at most 4, also in one large directory.
//   - The error is a *[fs.PathError], for example for an unreadable directory, or the cause
//     of ctx's end, which is checked between system calls; one that hangs is not
//     interrupted. The count until then is returned with the error.
func Walk(ctx context.Context, dir string) (Usage, error) {
	return WalkWithin(ctx, dir, Budget{})
}

// WalkWithin is [Walk] with a budget. The error may also be a *[BudgetError].
func WalkWithin(ctx context.Context, dir string, budget Budget) (Usage, error) {
	return measure(ctx, dir, options{budget: budget, workers: min(runtime.GOMAXPROCS(0), maxWorkers)})
}

// options are what tests vary.
type options struct {
	budget  Budget
	workers int
	tree    treewalk.Options
}

func measure(ctx context.Context, dir string, o options) (Usage, error) {
	if o.budget.Time > 0 {
		over := &BudgetError{Path: dir, Budget: Budget{Time: o.budget.Time}}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.budget.Time, over)
		defer cancel()
	}
	o.tree.CachedAttributes = true // a server is not waited for
	tree, err := treewalk.Open(dir, o.tree)
	if err != nil {
		return Usage{}, err
	}
	defer tree.Close()
	m := &measurement{tree: tree, dir: dir, budget: o.budget.Inodes, seen: make(map[fileID]struct{})}
	_, root := tree.Root()
	if err := m.newCounter().count(root); err != nil {
		return Usage{}, err
	}
	err = tree.Walk(ctx, o.workers, func() treewalk.Visitor { return m.newCounter() })
	if errors.Is(err, treewalk.ErrMoved) { // like anything else that is moved, counted or not
		err = nil
	}
	return m.usage(), err
}
