package diskusage

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

const (
	// maxOpen is how many levels of the tree keep their descriptor.
	maxOpen = 32
	// blockSize is the unit of st_blocks, whatever the file system's own.
	blockSize = 512
)

// walk is one measurement, depth first.
type walk struct {
	mountIDs bool
	usage    Usage
	seen     map[fileID]struct{} // files with several links
	root     file
	stack    []frame // from the root to the directory being read
	buffer   []byte
}

// frame is a directory whose entries have been counted.
type frame struct {
	name string
	// fd is -1 while the directory is too far up the stack to stay open.
	fd int
	id fileID
	// pending are the directories in it that have not been entered yet.
	pending []string
}

func (w *walk) count(f file) {
	if f.links > 1 && !f.isDir() {
		if _, ok := w.seen[f.fileID]; ok {
			return
		}
		w.seen[f.fileID] = struct{}{}
	}
	w.usage.Bytes += int64(f.blocks) * blockSize
	w.usage.Inodes++
}

func (w *walk) run(ctx context.Context) error {
	if err := w.read(ctx); err != nil {
		return err
	}
	for len(w.stack) > 0 {
		top := w.top()
		if len(top.pending) == 0 {
			w.leave()
			continue
		}
		name := top.pending[len(top.pending)-1]
		top.pending = top.pending[:len(top.pending)-1]
		if err := w.enter(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// enter goes into a directory, if it still is one and the same.
func (w *walk) enter(ctx context.Context, name string) error {
	fd, err := openDir(w.top().fd, name)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return w.failed("open", name, err)
	}
	dir, err := w.stat(fd, "")
	if err != nil {
		unix.Close(fd)
		return w.failed("statx", name, err)
	}
	if !dir.sameMount(w.root) { // mounted since it was counted
		unix.Close(fd)
		return nil
	}
	w.stack = append(w.stack, frame{name: name, fd: fd, id: dir.fileID})
	if far := len(w.stack) - 1 - maxOpen; far > 0 { // the root stays open
		unix.Close(w.stack[far].fd)
		w.stack[far].fd = -1
	}
	return w.read(ctx)
}

// read counts the entries of the top directory.
func (w *walk) read(ctx context.Context) error {
	top := w.top()
	var names []string
	for {
		n, err := eintr.Get(func() (int, error) { return unix.ReadDirent(top.fd, w.buffer) })
		if errors.Is(err, unix.ENOENT) || err == nil && n == 0 { // ENOENT: removed meanwhile
			return nil
		}
		if err != nil {
			return w.failed("getdents64", "", err)
		}
		_, _, names = unix.ParseDirent(w.buffer[:n], -1, names[:0])
		for _, name := range names {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			f, err := w.stat(top.fd, name)
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			if err != nil {
				return w.failed("statx", name, err)
			}
			if !f.sameMount(w.root) {
				continue
			}
			w.count(f)
			if f.isDir() {
				top.pending = append(top.pending, name)
			}
		}
	}
}

// leave goes back up. A directory on the way whose descriptor was closed is
// opened again through "..", unless what we come from was moved elsewhere;
// then the rest of it is given up, like anything else that disappears.
func (w *walk) leave() {
	from := w.top().fd
	defer unix.Close(from)
	w.stack = w.stack[:len(w.stack)-1]
	if len(w.stack) == 0 || w.top().fd >= 0 {
		return
	}
	if fd, err := openDir(from, ".."); err == nil {
		above, err := w.stat(fd, "")
		if err == nil && above.fileID == w.top().id && above.sameMount(w.root) {
			w.top().fd = fd
			return
		}
		unix.Close(fd)
	}
	for w.top().fd < 0 { // the root at the latest is open
		w.stack = w.stack[:len(w.stack)-1]
	}
}

func (w *walk) top() *frame { return &w.stack[len(w.stack)-1] }

func (w *walk) close() {
	for _, f := range w.stack {
		if f.fd >= 0 {
			unix.Close(f.fd)
		}
	}
}

func (w *walk) failed(op, name string, err error) error {
	elements := make([]string, 0, len(w.stack)+1)
	for _, f := range w.stack {
		elements = append(elements, f.name)
	}
	return &fs.PathError{Op: op, Path: filepath.Join(append(elements, name)...), Err: err}
}

func openDir(dirfd int, name string) (int, error) {
	return eintr.Get(func() (int, error) {
		return unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
}
