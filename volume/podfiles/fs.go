package podfiles

import (
	"bytes"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// FS returns the files as a file system, which is read-only and may be used concurrently. It
// shows the set's own bytes: they must not be changed while it is used. Paths that are not
// [fs.ValidPath] are not shown. It implements
// [fs.ReadFileFS], [fs.ReadDirFS] and [fs.StatFS].
func (s *Set) FS() fs.FS {
	t := tree{".": {info: info{name: ".", mode: fs.ModeDir | dirMode}}}
	for p, f := range s.Files {
		if !fs.ValidPath(p) {
			continue
		}
		t[p] = &node{info: info{name: path.Base(p), mode: f.Mode.Perm(), size: int64(len(f.Data))}, data: f.Data}
	}
	for _, dir := range s.dirs() {
		if !fs.ValidPath(dir) {
			continue
		}
		t[dir] = &node{info: info{name: path.Base(dir), mode: fs.ModeDir | dirMode}}
	}
	for p, n := range t {
		if p != "." {
			parent := t[path.Dir(p)]
			parent.entries = append(parent.entries, n.info)
		}
	}
	for _, n := range t {
		slices.SortFunc(n.entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	}
	return t
}

// tree has the files and directories by their paths.
type tree map[string]*node

type node struct {
	info    info
	data    []byte
	entries []fs.DirEntry
}

func (t tree) find(op, name string) (*node, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	n, ok := t[name]
	if !ok {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	return n, nil
}

// Open implements [fs.FS].
func (t tree) Open(name string) (fs.File, error) {
	n, err := t.find("open", name)
	if err != nil {
		return nil, err
	}
	if n.info.IsDir() {
		return &openDir{node: n, path: name}, nil
	}
	return &openFile{Reader: bytes.NewReader(n.data), info: n.info}, nil
}

// ReadFile implements [fs.ReadFileFS].
func (t tree) ReadFile(name string) ([]byte, error) {
	n, err := t.find("read", name)
	if err != nil {
		return nil, err
	}
	if n.info.IsDir() {
		return nil, &fs.PathError{Op: "read", Path: name, Err: errIsDir}
	}
	return bytes.Clone(n.data), nil
}

// ReadDir implements [fs.ReadDirFS].
func (t tree) ReadDir(name string) ([]fs.DirEntry, error) {
	n, err := t.find("readdir", name)
	if err != nil {
		return nil, err
	}
	if !n.info.IsDir() {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errNotDir}
	}
	return slices.Clone(n.entries), nil
}

// Stat implements [fs.StatFS].
func (t tree) Stat(name string) (fs.FileInfo, error) {
	n, err := t.find("stat", name)
	if err != nil {
		return nil, err
	}
	return n.info, nil
}

// fileError is why a call does not fit a file.
type fileError string

func (e fileError) Error() string { return string(e) }

const (
	errIsDir  fileError = "it is a directory"
	errNotDir fileError = "it is no directory"
)

// info is the entry of a file or directory.
type info struct {
	name string
	mode fs.FileMode
	size int64
}

func (i info) Name() string               { return i.name }
func (i info) Size() int64                { return i.size }
func (i info) Mode() fs.FileMode          { return i.mode }
func (i info) ModTime() time.Time         { return time.Time{} }
func (i info) IsDir() bool                { return i.mode.IsDir() }
func (i info) Sys() any                   { return nil }
func (i info) Type() fs.FileMode          { return i.mode.Type() }
func (i info) Info() (fs.FileInfo, error) { return i, nil }
func (i info) String() string             { return fs.FormatFileInfo(i) }

type openFile struct {
	*bytes.Reader
	info info
}

func (f *openFile) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *openFile) Close() error               { return nil }

type openDir struct {
	node *node
	path string
	read int
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.node.info, nil }
func (d *openDir) Close() error               { return nil }

func (d *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.path, Err: errIsDir}
}

// ReadDir implements [fs.ReadDirFile].
func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	rest := d.node.entries[d.read:]
	if n > 0 && len(rest) == 0 {
		return nil, io.EOF
	}
	if n > 0 {
		rest = rest[:min(n, len(rest))]
	}
	d.read += len(rest)
	return slices.Clone(rest), nil
}
