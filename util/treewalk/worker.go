package treewalk

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

const (
	// maxOpen is how many levels of the tree keep their descriptor.
	maxOpen = 32
	// bufferSize is the size of getdents64(2)'s buffer: about a thousand entries.
	bufferSize = 32 << 10
	// worthSharing is how much of that is worth waking another worker for.
	worthSharing = 4 << 10
)

// task is a part of the tree: a directory to read, or some entries of one.
type task struct {
	path    string // for errors
	fd      int    // the worker's own, but for the root
	id      Info
	unread  bool
	entries []byte // not visited yet, as getdents64 wrote them
	dirs    []string
}

// worker walks through its part of the tree, depth first.
type worker struct {
	walk    *walk
	visitor Visitor
	buffer  []byte
	path    string  // of the bottom of the stack
	stack   []frame // from there to the directory being visited
}

// frame is a directory whose entries have been visited.
type frame struct {
	name string
	// fd is -1 while the directory is too far up the stack to stay open.
	fd int
	id Info
	// dirs are the directories in it that have not been entered yet.
	dirs []string
}

func newWorker(w *walk, v Visitor) *worker { return &worker{walk: w, visitor: v} }

// run walks through a part of the tree. An error ends the whole walk.
func (w *worker) run(t task) {
	if w.buffer == nil {
		w.buffer = make([]byte, bufferSize)
	}
	w.path = t.path
	w.stack = append(w.stack[:0], frame{fd: t.fd, id: t.id, dirs: t.dirs})
	if err := w.walkFrom(t); err != nil {
		w.walk.fail(err)
	}
	w.close()
}

func (w *worker) walkFrom(t task) error {
	if err := w.visit(t.entries); err != nil {
		return err
	}
	if t.unread {
		if err := w.read(); err != nil {
			return err
		}
	}
	for len(w.stack) > 0 {
		top := w.top()
		if len(top.dirs) == 0 {
			w.leave()
			continue
		}
		w.shareDirs()
		name := top.dirs[len(top.dirs)-1]
		top.dirs = top.dirs[:len(top.dirs)-1]
		if err := w.enter(name); err != nil {
			return err
		}
	}
	return nil
}

// enter goes into a directory, if it still is one and nothing is mounted there.
func (w *worker) enter(name string) error {
	fd, info, err := w.walk.tree.openDir(w.top().fd, name)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return nil
	case err != nil:
		return w.failed("open", name, err)
	}
	w.push(frame{name: name, fd: fd, id: info})
	if err := w.visitor.Enter(fd, info); err != nil {
		return w.named("", err)
	}
	return w.read()
}

func (w *worker) push(f frame) {
	w.stack = append(w.stack, f)
	if far := len(w.stack) - 1 - maxOpen; far > 0 { // the bottom stays open
		unix.Close(w.stack[far].fd)
		w.stack[far].fd = -1
	}
}

// read visits the entries of the top directory.
func (w *worker) read() error {
	for {
		fd := w.top().fd
		n, err := eintr.Get(func() (int, error) { return unix.ReadDirent(fd, w.buffer) })
		if errors.Is(err, unix.ENOENT) || err == nil && n == 0 { // ENOENT: removed meanwhile
			return nil
		}
		if err != nil {
			return w.failed("getdents64", "", err)
		}
		if err := w.visit(w.shareEntries(w.buffer[:n])); err != nil {
			return err
		}
	}
}

func (w *worker) visit(entries []byte) error {
	top := w.top()
	for len(entries) > 0 {
		if w.walk.ctx.Err() != nil {
			return context.Cause(w.walk.ctx)
		}
		length := entryLength(entries)
		if length == 0 {
			return w.failed("getdents64", "", unix.EIO)
		}
		name, kind := Name(entries[direntName:length]), entries[direntKind]
		entries = entries[length:]
		if name.special() {
			continue
		}
		enter, err := w.visitor.Visit(top.fd, name, kind)
		if err != nil {
			return w.named(name.String(), err)
		}
		if enter {
			top.dirs = append(top.dirs, name.String())
		}
	}
	return nil
}

// shareEntries gives half of the top directory's entries to an idle worker, if
// there is one, and returns the rest.
func (w *worker) shareEntries(entries []byte) []byte {
	if len(entries) < worthSharing || len(w.walk.free) == 0 {
		return entries
	}
	half := middle(entries)
	if w.share(len(w.stack)-1, func(t *task) { t.entries = slices.Clone(entries[half:]) }) {
		return entries[:half]
	}
	return entries
}

// shareDirs gives half of the directories that are before this worker to an
// idle one, if there is one: of those nearest to the root, since most is
// beneath them.
func (w *worker) shareDirs() {
	if len(w.walk.free) == 0 {
		return
	}
	for i := range w.stack {
		f := &w.stack[i]
		half := (len(f.dirs) + 1) / 2
		if i == len(w.stack)-1 && half == len(f.dirs) {
			half-- // one is for this worker
		}
		if f.fd < 0 || half < 1 {
			continue
		}
		if w.share(i, func(t *task) { t.dirs = slices.Clone(f.dirs[:half]) }) {
			f.dirs = f.dirs[half:]
		}
		return
	}
}

// share hands a part of the directory at this level of the stack to an idle
// worker, and reports whether there was one.
func (w *worker) share(level int, part func(*task)) bool {
	if len(w.walk.free) == 0 {
		return false
	}
	f := &w.stack[level]
	fd, err := openAgain(f.fd)
	if err != nil {
		return false // too many open files, for example; then alone
	}
	t := task{path: w.pathTo(level+1, ""), fd: fd, id: f.id}
	select {
	case other := <-w.walk.free:
		part(&t)
		w.walk.others.Go(func() {
			other.run(t)
			w.walk.free <- other
		})
		return true
	default:
		unix.Close(fd)
		return false
	}
}

// leave goes back up. A directory on the way whose descriptor was closed is
// opened again through "..", unless what we come from was moved elsewhere; then
// by its path from the bottom. A missing one is given up.
func (w *worker) leave() {
	from := *w.top()
	w.stack = w.stack[:len(w.stack)-1]
	defer w.closeFrame(len(w.stack), from.fd)
	if len(w.stack) == 0 || w.top().fd >= 0 {
		return
	}
	if fd, info, err := w.walk.tree.openDir(from.fd, ".."); err == nil {
		if info.sameFile(w.top().id) {
			w.top().fd = fd
			return
		}
		unix.Close(fd)
	}
	w.reopen()
}

// reopen opens the closed directories of the stack by their names. Directories
// that were moved are dropped with the rest of their work.
func (w *worker) reopen() {
	for i := 1; i < len(w.stack); i++ {
		if w.stack[i].fd < 0 && !w.reopenLevel(i) {
			w.walk.moved.Store(true)
			w.closeFrom(i)
			return
		}
		if above := i - 1; above > 0 && above < len(w.stack)-maxOpen {
			unix.Close(w.stack[above].fd)
			w.stack[above].fd = -1
		}
	}
}

func (w *worker) reopenLevel(i int) bool {
	fd, info, err := w.walk.tree.openDir(w.stack[i-1].fd, w.stack[i].name)
	if err != nil {
		return false
	}
	if !info.sameFile(w.stack[i].id) {
		unix.Close(fd)
		return false
	}
	w.stack[i].fd = fd
	return true
}

func (w *worker) top() *frame { return &w.stack[len(w.stack)-1] }

func (w *worker) close() { w.closeFrom(0) }

func (w *worker) closeFrom(level int) {
	for i := level; i < len(w.stack); i++ {
		w.closeFrame(i, w.stack[i].fd)
	}
	w.stack = w.stack[:level]
}

// closeFrame closes the directory at a level of the stack, but not the root.
func (w *worker) closeFrame(level, fd int) {
	if fd >= 0 && (level > 0 || fd != w.walk.tree.fd) {
		unix.Close(fd)
	}
}

func (w *worker) pathTo(level int, name string) string {
	elements := make([]string, 0, level+1)
	elements = append(elements, w.path)
	for _, f := range w.stack[1:level] {
		elements = append(elements, f.name)
	}
	return filepath.Join(append(elements, name)...)
}

func (w *worker) failed(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: w.pathTo(len(w.stack), name), Err: err}
}

// named adds the path of an entry of the top directory to a visitor's error.
func (w *worker) named(name string, err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok && e.Path == "" {
		e.Path = w.pathTo(len(w.stack), name)
	}
	return err
}
