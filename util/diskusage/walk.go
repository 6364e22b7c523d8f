package diskusage

import (
	"bytes"
	"encoding/binary"
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
	// bufferSize is that of what getdents64(2) fills: about a thousand entries.
	bufferSize = 32 << 10
)

// walk counts a part of a tree, depth first.
type walk struct {
	tree   *tree
	usage  Usage
	stack  []frame // from where this walk began to the directory being read
	buffer []byte
	st     unix.Statx_t
	file   file // the one that was looked at last
}

// frame is a directory whose entries have been counted.
type frame struct {
	// name is the path of where the walk began.
	name string
	// fd is -1 while the directory is too far up the stack to stay open.
	fd int
	id fileID
	// pending are the directories in it that have not been entered yet.
	pending []string
}

// begin counts the root of the tree, where this walk begins.
func (w *walk) begin() error {
	if err := w.statOpen(w.top().fd); err != nil {
		return w.failed("statx", "", err)
	}
	w.tree.root = w.file
	w.top().id = w.file.fileID
	w.count()
	return nil
}

// run counts the entries, if there are any, or those of the directory where
// the walk begins unless these are pending, and then everything below.
func (w *walk) run(entries []byte) {
	defer w.close()
	var err error
	switch {
	case entries != nil:
		err = w.entries(entries)
		w.tree.release(entries)
	case len(w.top().pending) == 0:
		err = w.read()
	}
	for err == nil && len(w.stack) > 0 && !w.tree.stopped.Load() {
		top := w.top()
		if len(top.pending) == 0 {
			w.leave()
			continue
		}
		w.shareDirectories()
		name := top.pending[len(top.pending)-1]
		top.pending = top.pending[:len(top.pending)-1]
		err = w.enter(name)
	}
	if err != nil {
		w.tree.stop(err)
	}
}

// close adds what was counted to the whole.
func (w *walk) close() {
	for _, f := range w.stack {
		if f.fd >= 0 {
			unix.Close(f.fd)
		}
	}
	w.tree.release(w.buffer)
	w.tree.lock.Lock()
	defer w.tree.lock.Unlock()
	w.tree.usage.Bytes += w.usage.Bytes
	w.tree.usage.Inodes += w.usage.Inodes
}

// count counts the file that was looked at last.
func (w *walk) count() {
	if w.file.links > 1 && !w.file.isDir() && !w.tree.isNew(w.file.fileID) || !w.tree.afford() {
		return
	}
	w.usage.Bytes += int64(w.file.blocks) * blockSize
	w.usage.Inodes++
}

// enter goes into a directory, if it still is one and the same.
func (w *walk) enter(name string) error {
	fd, err := openDir(w.top().fd, name)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return w.failed("open", name, err)
	}
	if err := w.statOpen(fd); err != nil {
		unix.Close(fd)
		return w.failed("statx", name, err)
	}
	if !w.file.sameMount(&w.tree.root) { // mounted since it was counted
		unix.Close(fd)
		return nil
	}
	w.stack = append(w.stack, frame{name: name, fd: fd, id: w.file.fileID})
	if far := len(w.stack) - 1 - maxOpen; far > 0 { // where it began stays open
		unix.Close(w.stack[far].fd)
		w.stack[far].fd = -1
	}
	return w.read()
}

// read counts the entries of the top directory, or has others count them.
func (w *walk) read() error {
	for first := true; !w.tree.stopped.Load(); first = false {
		fd := w.top().fd
		n, err := eintr.Get(func() (int, error) { return unix.ReadDirent(fd, w.buffer) })
		if errors.Is(err, unix.ENOENT) || err == nil && n == 0 { // ENOENT: removed meanwhile
			return nil
		}
		if err != nil {
			return w.failed("getdents64", "", err)
		}
		if !first && w.shareEntries(w.buffer[:n]) {
			w.buffer = w.tree.buffer()
			continue
		}
		if err := w.entries(w.buffer[:n]); err != nil {
			return err
		}
	}
	return nil
}

// What the kernel writes for each entry: inode number and offset of 8 bytes
// each, the length of the whole, the type, and the name with a NUL byte
// (getdents64(2)).
const (
	direntLength = 16
	direntName   = 19
)

// entries counts entries of the top directory.
func (w *walk) entries(entries []byte) error {
	top := w.top()
	for len(entries) > direntName && !w.tree.stopped.Load() {
		length := int(binary.NativeEndian.Uint16(entries[direntLength:]))
		if length <= direntName || length > len(entries) || bytes.IndexByte(entries[direntName:length], 0) < 0 {
			return w.failed("getdents64", "", unix.EIO)
		}
		name := entries[direntName:length]
		entries = entries[length:]
		if name[0] == '.' && (name[1] == 0 || name[1] == '.' && name[2] == 0) {
			continue
		}
		err := w.statEntry(top.fd, name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return w.failed("statx", unix.ByteSliceToString(name), err)
		}
		if !w.file.sameMount(&w.tree.root) {
			continue
		}
		w.count()
		if w.file.isDir() {
			top.pending = append(top.pending, unix.ByteSliceToString(name))
		}
	}
	return nil
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
		if w.statOpen(fd) == nil && w.file.fileID == w.top().id && w.file.sameMount(&w.tree.root) {
			w.top().fd = fd
			return
		}
		unix.Close(fd)
	}
	for w.top().fd < 0 { // where it began at the latest is open
		w.stack = w.stack[:len(w.stack)-1]
	}
}

func (w *walk) top() *frame { return &w.stack[len(w.stack)-1] }

func (w *walk) failed(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: filepath.Join(w.path(len(w.stack)), name), Err: err}
}

// path is that of the directory at a depth of the stack.
func (w *walk) path(depth int) string {
	elements := make([]string, 0, depth)
	for _, f := range w.stack[:depth] {
		elements = append(elements, f.name)
	}
	return filepath.Join(elements...)
}

func openDir(dirfd int, name string) (int, error) {
	return eintr.Get(func() (int, error) {
		return unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
}
