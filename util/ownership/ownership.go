// Package ownership gives directory trees to a group, as Kubernetes' fsGroup asks
// for: every file belongs to the group, and owner and group may read and write
// it; directories pass the group on to new files in them.
//
// Like every package below util, it carries no promise of compatibility.
package ownership

import (
	"context"
	"errors"
	"io/fs"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/util/treewalk"
)

// Group is what a tree is given to.
type Group struct {
	// ID is the group's.
	ID uint32
	// ReadOnly: owner and group may only read files, in a volume that is not
	// to be written to.
	ReadOnly bool
}

// Options say how a tree is given to a group.
type Options struct {
	// OnRootMismatch does nothing where the root has the group and the
	// permissions it should have: fsGroupChangePolicy OnRootMismatch.
	OnRootMismatch bool
	// Progress is told how many files are done, at the beginning,
	// each second and at the end, by one goroutine at a time; nil: it is not.
	Progress func(done int64)
}

// progressEvery is how often progress is reported.
const progressEvery = time.Second

// workersPerProcessor is more than one since some of them wait for the disk.
const workersPerProcessor = 2

// Set gives the tree at dir to a group by the kubelet's rules (Kubernetes v1.37, fsGroup).
//
//   - Each file gets the group, and the mode bits 0660, or 0440 of a read-only volume, beside
//     its own; directories also get setgid and 0110. Of a link only the group changes.
//     Pipes, sockets and devices are files like others. A right file is not written to.
//   - Unlike the kubelet's, a file that has setgid for another group loses it with that
//     group.
//   - A link at dir is followed. Links beneath it never are, and mounts are not entered. A
//     file that is swapped for another meanwhile gets no mode that another file had.
//   - New files in a directory that was read already inherit the group from it. A file that
//     disappears is no error.
//   - The root changes last, so that an interrupted walk does not look finished; the next one
//     skips right files. Files that no process can change, since they are immutable or in a
//     read-only part of the tree, are left as they are, as the kubelet does.
//   - The error is an *[Error], another *[fs.PathError], or the cause of ctx's end, which is
//     checked between system calls; one that hangs is not interrupted.
func Set(ctx context.Context, dir string, g Group, o Options) error {
	return set(ctx, dir, g, o, kernel{fchmodat2: true})
}

func set(ctx context.Context, dir string, g Group, o Options, k kernel) error {
	tree, err := treewalk.Open(dir, k.tree)
	if err != nil {
		return err
	}
	defer tree.Close()
	fd, root := tree.Root()
	if o.OnRootMismatch && g.has(root) {
		return nil
	}
	c := &change{group: g, tree: tree, readOnlyTree: readOnly(fd)}
	c.noFchmodat2.Store(!k.fchmodat2)
	stop := c.report(o.Progress)
	defer stop()
	if err := c.walk(ctx); err != nil {
		return g.explain(err)
	}
	return g.explain(c.root(dir))
}

// root changes the root, whose mode may be another by now than when it was
// opened.
func (c *change) root(dir string) error {
	fd, _ := c.tree.Root()
	info, err := c.tree.StatOpen(fd)
	if err != nil {
		return pathError("statx", dir, err)
	}
	c.visitors[0].done.Add(1)
	err = c.fix(fd, info)
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		e.Path = dir
	}
	return err
}

// walk repeats the walk while directories are moved meanwhile.
func (c *change) walk(ctx context.Context) error {
	return retry.Do(ctx, treewalk.ErrMoved, func() error {
		return c.tree.Walk(ctx, workersPerProcessor*runtime.GOMAXPROCS(0), c.newVisitor)
	})
}

// report calls progress until the returned function is called, which calls it
// once more.
func (c *change) report(progress func(int64)) (stop func()) {
	if progress == nil {
		return func() {}
	}
	progress(0)
	end := make(chan struct{})
	var reporter sync.WaitGroup
	reporter.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				progress(c.done())
			case <-end:
				return
			}
		}
	})
	return func() {
		close(end)
		reporter.Wait()
		progress(c.done())
	}
}

// readOnly reports whether the file system or mount of an open file is
// read-only.
func readOnly(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && st.Flags&unix.ST_RDONLY != 0
}
