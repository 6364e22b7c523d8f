package layers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/openat"
	"github.com/podvol/podvol/util/removetree"
)

// Part is a layer that is merged.
type Part struct {
	Layer
	// Dir is its directory.
	Dir string
	// Name is the path of its file; empty: it is a tree.
	Name string
}

// Merge makes the tree of an image in an empty directory on the same file system, from its
// layers, the lowest first. Files are hard links, so that of the budget the directories count.
// It returns how many it has made. The directory is not synced.
func Merge(ctx context.Context, dir *os.File, parts []Part, budget *Budget) (directories int64, err error) {
	m := &merging{tree: newTree(dir)}
	m.imply = func(string) error {
		directories++
		return budget.take(dir, 0, 1)
	}
	defer m.close()
	for _, p := range parts {
		if err := m.part(ctx, p); err != nil {
			return directories, err
		}
	}
	return directories, m.finish()
}

type merging struct {
	*tree
	// without are directories to which the layer at hand gives no attributes.
	without map[string]bool
}

func (m *merging) part(ctx context.Context, p Part) error {
	for _, hidden := range p.Whiteouts {
		if err := m.hide(ctx, hidden); err != nil {
			return err
		}
	}
	for _, dir := range p.Opaque {
		if err := m.empty(ctx, dir); err != nil {
			return err
		}
	}
	from, err := os.Open(p.Dir)
	if err != nil {
		return err
	}
	defer from.Close()
	if p.File {
		return m.single(ctx, from, p.Name)
	}
	m.without = make(map[string]bool, len(p.Implied))
	for _, i := range p.Implied {
		m.without[i] = true
	}
	_, known := m.directories["."]
	return m.directoryOf(ctx, from, ".", !known)
}

// lower opens a directory that the layers below have; nil: they have none.
func (m *merging) lower(p string) (*os.File, error) {
	d, err := m.directory(p, false)
	if isMissing(err) {
		err = nil
	}
	return d, err
}

func (m *merging) hide(ctx context.Context, p string) error {
	dir, err := m.lower(path.Dir(p))
	if err != nil || dir == nil {
		return err
	}
	return m.remove(ctx, dir, path.Base(p), p)
}

// remove removes a name, with what is below it.
func (m *merging) remove(ctx context.Context, dir *os.File, name, p string) error {
	err := unix.Unlinkat(int(dir.Fd()), name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if m.at != nil && (m.atPath == p || strings.HasPrefix(m.atPath, p+"/")) && m.at != dir {
		m.close()
	}
	return removetree.RemoveAt(ctx, dir, name)
}

// empty removes what the layers below have in a directory.
func (m *merging) empty(ctx context.Context, p string) error {
	dir, err := m.lower(p)
	if err != nil || dir == nil {
		return err
	}
	read, err := openat.Dir(dir, ".")
	if err != nil {
		return err
	}
	defer read.Close()
	names, err := read.Readdirnames(-1)
	for _, name := range names {
		if err == nil {
			err = m.remove(ctx, read, name, path.Join(p, name))
		}
	}
	return err
}

func (m *merging) single(ctx context.Context, from *os.File, p string) error {
	parent, name, err := m.parent(p)
	if err != nil {
		return err
	}
	if err := m.remove(ctx, parent, name, p); err != nil {
		return err
	}
	return link(from, fileName, parent, name)
}

// directoryOf merges a directory of a layer into the one of the same path, which is fresh
// if no layer below has it.
func (m *merging) directoryOf(ctx context.Context, from *os.File, p string, fresh bool) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if fresh || !m.without[p] {
		a, err := statOf(from)
		if err != nil {
			return err
		}
		m.directories[p] = a
	}
	to, err := m.directory(p, true)
	if err == nil {
		to, err = openat.File(to, ".", unix.O_PATH|unix.O_DIRECTORY, 0) // which is needed after others
	}
	if err != nil {
		return err
	}
	defer to.Close()
	entries, err := from.ReadDir(-1)
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		if err := m.entry(ctx, from, to, path.Join(p, e.Name()), e); err != nil {
			return err
		}
	}
	return nil
}

func (m *merging) entry(ctx context.Context, from, to *os.File, p string, e fs.DirEntry) error {
	name := e.Name()
	if !e.IsDir() {
		err := link(from, name, to, name)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err := m.remove(ctx, to, name, p); err != nil {
			return err
		}
		return link(from, name, to, name)
	}
	fresh := !isDirectory(to, name)
	if fresh {
		if err := m.remove(ctx, to, name, p); err != nil {
			return err
		}
	}
	below, err := openat.Dir(from, name)
	if err != nil {
		return err
	}
	defer below.Close()
	return m.directoryOf(ctx, below, p, fresh)
}

func link(from *os.File, name string, to *os.File, as string) error {
	err := unix.Linkat(int(from.Fd()), name, int(to.Fd()), as, 0)
	if err != nil {
		return fmt.Errorf("link %s to %s: %w", path.Join(from.Name(), name), path.Join(to.Name(), as), err)
	}
	return nil
}

func statOf(dir *os.File) (attributes, error) {
	var s unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &s); err != nil {
		return attributes{}, &fs.PathError{Op: "stat", Path: dir.Name(), Err: err}
	}
	return attributes{mode: s.Mode & keptOfDirectories, uid: int(s.Uid), gid: int(s.Gid), mtime: s.Mtim}, nil
}
