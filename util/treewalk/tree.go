// Package treewalk goes through directory trees by descriptor, with several
// workers.
//
//   - No process that changes the tree meanwhile can lead a walk out of it: links
//     are never followed.
//   - It never crosses a mount, not even a bind mount of the same file system
//     where the kernel tells them apart, and looks before it opens, so as not
//     to trigger automounts.
//   - Neither the depth of the tree nor the number of its files costs file
//     descriptors: each worker has a few dozen open at most.
//   - Idle workers get half of what another has before it, be that directories
//     or the entries of a single large one.
//
// Like every package below util, it carries no promise of compatibility.
package treewalk

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// ErrMoved says that a directory was moved away while it was walked through,
// so that others may have been left out.
var ErrMoved = errors.New("a directory was moved while the tree was walked through")

// Options change how a tree is read. The zero value asks for everything
// the kernel has.
type Options struct {
	// CachedAttributes takes the cached attributes of a file on a server, instead of
	// asking the server.
	CachedAttributes bool
	// WithoutMountIDs does without the mount ids of statx(2), which Linux has
	// since 5.8: only mounts of another file system are noticed. For tests.
	WithoutMountIDs bool
	// WithoutOpenat2 does without openat2(2), which Linux has since 5.6. For
	// tests.
	WithoutOpenat2 bool
}

// Tree is an open directory and everything beneath it. Its methods are safe for
// concurrent use, but only one walk may be under way.
type Tree struct {
	path      string
	fd        int
	root      Info
	options   Options
	noOpenat2 atomic.Bool
}

// Open opens the tree at dir. If dir is a link it is followed. The error is a
// *[fs.PathError].
func Open(dir string, o Options) (*Tree, error) {
	fd, err := eintr.Get(func() (int, error) {
		return unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return newTree(dir, fd, o)
}

// OpenAt is [Open] of a directory that is open already, be it with O_PATH. The
// tree has a descriptor of its own; dir's name appears in errors only.
func OpenAt(dir *os.File, o Options) (*Tree, error) {
	fd, err := openAgain(int(dir.Fd()))
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir.Name(), Err: err}
	}
	return newTree(dir.Name(), fd, o)
}

func newTree(dir string, fd int, o Options) (*Tree, error) {
	t := &Tree{path: dir, fd: fd, options: o}
	t.noOpenat2.Store(o.WithoutOpenat2)
	var err error
	if t.root, err = t.StatOpen(fd); err != nil {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "statx", Path: dir, Err: err}
	}
	return t, nil
}

// Close closes the root. No walk may be under way.
func (t *Tree) Close() error { return unix.Close(t.fd) }

// Root returns the root's state when it was opened, and its descriptor, which
// stays the tree's.
func (t *Tree) Root() (fd int, info Info) { return t.fd, t.root }

// Visitor is what a walk does with what it finds. Each worker has one of its
// own. An error ends the walk of all workers; a *[fs.PathError] without a path
// gets it from the walk.
type Visitor interface {
	// Visit looks at an entry of the directory that is open as dirfd, and
	// reports whether it is a directory to go into. The name is valid during
	// the call only. Kind is the entry's type as the directory knows it,
	// unix.DT_UNKNOWN where it does not. The entry may be a mount point and may
	// have changed or disappeared.
	Visit(dirfd int, name Name, kind uint8) (enter bool, err error)
	// Enter looks at a directory on the tree's mount, open as fd, before its
	// entries are read. It is not called for the root.
	Enter(fd int, info Info) error
}

// Walk visits everything beneath the root with at most so many workers, each
// with a visitor that newVisitor makes. The caller's goroutine is one of them,
// the others come and go as there is work; all have returned when Walk does.
//
// Files that are added, moved or removed meanwhile are visited or not; ctx is
// checked between entries, and its cause is returned when it has ended. Other
// errors are the visitors', a *[fs.PathError] for a directory that cannot be
// read, or, where everything else was walked through, [ErrMoved].
func (t *Tree) Walk(ctx context.Context, workers int, newVisitor func() Visitor) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &walk{tree: t, ctx: ctx, fail: cancel, free: make(chan *worker, max(workers-1, 0))}
	for range cap(w.free) {
		w.free <- newWorker(w, newVisitor())
	}
	if _, err := unix.Seek(t.fd, 0, unix.SEEK_SET); err != nil { // another walk may have read it
		return &fs.PathError{Op: "lseek", Path: t.path, Err: err}
	}
	first := newWorker(w, newVisitor())
	first.run(task{path: t.path, fd: t.fd, id: t.root, unread: true})
	w.others.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case w.moved.Load():
		return &fs.PathError{Op: "walk", Path: t.path, Err: ErrMoved}
	}
	return nil
}

// walk is what the workers of one walk share.
type walk struct {
	tree   *Tree
	ctx    context.Context // of this walk alone
	fail   context.CancelCauseFunc
	free   chan *worker
	others sync.WaitGroup
	moved  atomic.Bool
}
