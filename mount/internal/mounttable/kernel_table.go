package mounttable

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/openat"
	"github.com/podvol/podvol/util/pathin"
)

// MountinfoPath is the mount table of this process (proc_pid_mountinfo(5)).
const MountinfoPath = "/proc/self/mountinfo"

// Uncached reads mountinfo anew for every question and keeps nothing. It is
// what an [Table] must agree with, and the answer where that has none.
type Uncached struct{}

// All implements [mount.Table].
func (Uncached) All() ([]mount.Entry, error) {
	f, err := OpenMountinfo(MountinfoPath)
	if err != nil {
		return nil, fmt.Errorf("open the mount table: %w", err)
	}
	defer f.Close()
	entries, err := readUnchanged(f)
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	return entries, nil
}

// readUnchanged reads the table until it did not change meanwhile. The kernel
// hands it out a page at a time; kernels before 5.8 lose lines when another
// mount goes in between. After a few attempts the last reading has to do.
func readUnchanged(f *os.File) (entries []mount.Entry, err error) {
	for range 5 {
		if entries, err = ParseMountinfo(f); err != nil {
			return nil, err
		}
		if changed, err := pollChange(f, 0); err != nil || !changed {
			return entries, err
		}
		if _, err := f.Seek(0, 0); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// BySource implements [mount.Table].
func (t Uncached) BySource(source string) ([]mount.Entry, error) {
	return t.where(func(e mount.Entry) bool { return e.Source == source })
}

// ByDevice implements [mount.Table].
func (t Uncached) ByDevice(device uint64) ([]mount.Entry, error) {
	return t.where(func(e mount.Entry) bool { return e.Device == device })
}

func (t Uncached) where(keep func(mount.Entry) bool) ([]mount.Entry, error) {
	entries, err := t.All()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(entries, func(e mount.Entry) bool { return !keep(e) }), nil
}

// At implements [mount.Table].
func (t Uncached) At(target string) (mount.Entry, bool, error) {
	if !filepath.IsAbs(target) {
		return mount.Entry{}, false, fmt.Errorf("look up a mount: %q is not an absolute path", target)
	}
	entries, err := t.All()
	if err != nil {
		return mount.Entry{}, false, err
	}
	e, ok, _, err := lookUp(lines(entries), filepath.Clean(target), os.Readlink)
	if err != nil {
		return mount.Entry{}, false, fmt.Errorf("look up a mount: %w", err)
	}
	return e, ok, nil
}

// view is what looking a path up takes of a table.
type view interface {
	// mountedAt returns the topmost visible mount whose target is just target,
	// which is clean, absolute and free of links.
	mountedAt(target string) (mount.Entry, bool, error)
	// named reports whether a target ends in this name.
	named(name string) (bool, error)
}

// lines is the view of a list of mounts.
type lines []mount.Entry

func (l lines) mountedAt(target string) (mount.Entry, bool, error) {
	e, ok := mountedAt(l, target)
	return e, ok, nil
}

func (l lines) named(name string) (bool, error) {
	return slices.ContainsFunc(l, func(e mount.Entry) bool { return path.Base(e.Target) == name }), nil
}

// lookUp finds the topmost mount at target, which is clean and absolute. It
// reads links only where the table alone cannot tell: whatever links there are
// in the parents, the mount's target ends in the same name. Place is the path
// without links if they had to be followed. An error of following them is a
// *linkError.
func lookUp(v view, target string, readlink func(string) (string, error)) (e mount.Entry, ok bool, place string, err error) {
	if e, ok, err = v.mountedAt(target); ok || err != nil {
		return e, ok, "", err
	}
	name := path.Base(target)
	if named, err := v.named(name); !named || err != nil {
		return mount.Entry{}, false, "", err
	}
	parent, err := resolve(v, path.Dir(target), readlink)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return mount.Entry{}, false, "", nil // where there is no directory there is no mount
	}
	if err != nil {
		return mount.Entry{}, false, "", err
	}
	place = path.Join(parent, name)
	e, ok, err = v.mountedAt(place)
	return e, ok, place, err
}

// linkError is a failure to follow the links in a path.
type linkError struct{ err error }

func (e *linkError) Error() string { return e.err.Error() }
func (e *linkError) Unwrap() error { return e.err }

// resolve follows the links in dir, which is clean and absolute. A mount point
// is no link, so it is passed without a look.
func resolve(v view, dir string, readlink func(string) (string, error)) (string, error) {
	at := plainPart(dir)
	rest := strings.Split(strings.TrimPrefix(dir, at), "/")
	for links := 0; len(rest) > 0; {
		next := path.Join(at, rest[0]) // at is free of links: ".." is its parent
		rest = rest[1:]
		if pathin.In(next, at) {
			at = next
			continue
		}
		_, mounted, err := v.mountedAt(next)
		if err != nil {
			return "", err
		}
		if mounted {
			at = next
			continue
		}
		link, err := readlink(next)
		if errors.Is(err, unix.EINVAL) {
			at = next // no link
			continue
		}
		if err != nil {
			return "", &linkError{err}
		}
		if links++; links > MaxLinks {
			return "", &linkError{&fs.PathError{Op: "readlink", Path: dir, Err: unix.ELOOP}}
		}
		if path.IsAbs(link) {
			at = "/"
		}
		rest = append(strings.Split(link, "/"), rest...)
	}
	return at, nil
}

// plainPart is the longest part of dir that is known to be free of links at little cost: the
// last directories of a volume are often missing, those above rarely.
func plainPart(dir string) string {
	for range 5 {
		if dir == "/" || openat.IsPlain(dir) {
			return dir
		}
		dir = path.Dir(dir)
	}
	return "/"
}

// mountedAt returns the topmost visible mount whose target is just target.
func mountedAt(entries []mount.Entry, target string) (mount.Entry, bool) {
	if !slices.ContainsFunc(entries, func(e mount.Entry) bool { return e.Target == target }) {
		return mount.Entry{}, false // the usual answer, and cheap
	}
	if e, ok := MountOf(entries, target); ok && e.Target == target {
		return e, true
	}
	return mount.Entry{}, false
}

// MountOf returns the mount in which target lies, target itself included: it
// walks down from the root as the kernel does, so that a mount hidden by a
// later one over its parent is not found. There may be none if the process's
// root is no mount point. Target is clean, absolute and free of links.
func MountOf(entries []mount.Entry, target string) (mount.Entry, bool) {
	ids := make(map[int]bool, len(entries))
	for _, e := range entries {
		ids[e.ID] = true
	}
	// The mounts on the way, and those stacked on one mount, in their order.
	var onTheWay []mount.Entry
	for _, e := range entries {
		if pathin.In(e.Target, target) {
			onTheWay = append(onTheWay, e)
		}
	}
	var current mount.Entry
	found := false
	for _, prefix := range prefixes(target) {
		for {
			i := slices.IndexFunc(onTheWay, func(e mount.Entry) bool {
				if e.Target != prefix || found && e.ID == current.ID {
					return false
				}
				return found && e.ParentID == current.ID || !found && (!ids[e.ParentID] || e.ParentID == e.ID)
			})
			if i < 0 {
				break
			}
			current, found = onTheWay[i], true
			onTheWay = slices.Delete(onTheWay, i, i+1) // ends the loop on any input
		}
	}
	return current, found
}

// prefixes returns the directories from the root to target: "/", "/a", "/a/b".
func prefixes(target string) []string {
	all := []string{"/"}
	for i := 1; i < len(target); i++ {
		if target[i] == '/' {
			all = append(all, target[:i])
		}
	}
	if target != "/" {
		all = append(all, target)
	}
	return all
}

// refsOf returns the targets of the other mounts that show the same directory
// as target does. Target is clean, absolute and free of links.
func refsOf(entries []mount.Entry, target string) []string {
	own, ok := MountOf(entries, target)
	if !ok {
		return nil
	}
	root := shownAt(own, target)
	var refs []string
	for _, e := range entries {
		if e.ID != own.ID && e.Target != target && e.Device == own.Device && e.Root == root {
			refs = append(refs, e.Target)
		}
	}
	return refs
}

// shownAt is the directory of the file system that is seen at p, which lies at or
// below the target.
func shownAt(e mount.Entry, p string) string {
	return path.Join(e.Root, strings.TrimPrefix(p, strings.TrimSuffix(e.Target, "/")))
}

// Subscribe implements [mount.Table].
func (Uncached) Subscribe(ctx context.Context) <-chan struct{} {
	return watchMountinfo(ctx, MountinfoPath)
}

// MaxLinks is the kernel's limit on links in one look-up.
const MaxLinks = 40

// MountWithID finds a mount in the mount table: statfs(2) would ask a server.
func MountWithID(table mount.Table, id int) (mount.Entry, error) {
	entries, err := table.All()
	if err != nil {
		return mount.Entry{}, err
	}
	for _, e := range entries {
		if e.ID == id {
			return e, nil
		}
	}
	return mount.Entry{}, fmt.Errorf("mount %d is not in the mount table", id)
}

// MountIDOf returns the mount of a descriptor.
func MountIDOf(fd int) (int, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.Atoi(strings.TrimSpace(id))
		}
	}
	return 0, errors.New("the kernel does not show the mount of a descriptor")
}
