// Package diskusage measures the space that a directory tree occupies.
//
// Like every package below util, it carries no promise of compatibility.
package diskusage

import (
	"context"
	"fmt"
	"io/fs"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
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
	// Time is how long it may take. It is looked at between system calls.
	Time time.Duration
}

// BudgetError says that a measurement has used up its budget. What was counted
// until then is returned beside it: the tree is at least that large.
type BudgetError struct {
	// Path is the root of the tree.
	Path string
	// Budget is what was given; its other field than the one that was used up
	// is zero.
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

// Walk measures the tree at dir. If dir is a link it is followed; links
// beneath it are not. A file with several names in the tree counts once. What
// is mounted beneath dir does not count, whatever its file system.
//
// The tree may change meanwhile: what disappears or is moved is counted or is
// not. Neither the depth of the tree nor the number of its files costs file
// descriptors. As many threads as there are processors walk, at most 4; a
// directory with many files is shared among them too.
//
// The error is a *[fs.PathError], for example for a directory that must not be
// read, or the cause of ctx's end, which is looked at between system calls; one
// that hangs is not interrupted. What was counted until then is returned with
// the error.
func Walk(ctx context.Context, dir string) (Usage, error) {
	return WalkWithin(ctx, dir, Budget{})
}

// WalkWithin is [Walk] with a budget. The error may also be a *[BudgetError].
func WalkWithin(ctx context.Context, dir string, budget Budget) (Usage, error) {
	return measure(ctx, dir, options{budget: budget, workers: min(runtime.GOMAXPROCS(0), maxWorkers), mountIDs: true})
}

// options are what tests vary.
type options struct {
	budget  Budget
	workers int
	// mountIDs says to use the mount ids of statx(2), which Linux has since
	// 5.8. Without them only mounts of another file system are noticed.
	mountIDs bool
	// plainStat says to call statx by golang.org/x/sys/unix.
	plainStat bool
}

func measure(ctx context.Context, dir string, o options) (Usage, error) {
	if o.budget.Time > 0 {
		over := &BudgetError{Path: dir, Budget: Budget{Time: o.budget.Time}}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.budget.Time, over)
		defer cancel()
	}
	fd, err := eintr.Get(func() (int, error) {
		return unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return Usage{}, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	t := newTree(dir, o)
	w := t.newWalk(frame{name: dir, fd: fd})
	if err := w.begin(); err != nil {
		unix.Close(fd)
		return Usage{}, err
	}
	defer context.AfterFunc(ctx, func() { t.stop(context.Cause(ctx)) })()
	if ctx.Err() != nil { // what AfterFunc does may come too late
		t.stop(context.Cause(ctx))
	}
	w.run(nil)
	t.walks.Wait()
	t.lock.Lock()
	defer t.lock.Unlock()
	return t.usage, t.err
}
