//go:build unix

package subpath

import (
	"errors"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

const (
	// maxLinks is how many links the kernel follows (path_resolution(7)).
	maxLinks = 40
	// maxChanges is how often an element may change between two looks at it.
	maxChanges = 1000
)

// walk resolves a path as openat2 with RESOLVE_BENEATH does. Each element is
// opened in the directory before it without following a link, so that the file
// checked is the one used. "..", which only links can contain, goes back to the
// descriptor it came from, wherever that directory is by now. A path of n
// elements may take n descriptors while it is walked.
type walk struct {
	at      place
	opener  opener
	stack   []level   // from the root to the element reached
	todo    []element // the elements ahead, the next one last
	links   int
	changes int
}

// opener opens the entries of directories, and follows no link. Both methods may
// return errChanged, but on Linux.
type opener interface {
	// open opens an entry. The error is the system's.
	open(dir int, name string) (entry, error)
	// target returns where a link leads that was opened, and whether it is no path.
	target(at place, dir int, name string, link entry) (target string, magic bool, err error)
}

// entry is an open entry. The descriptor of a link is -1 where links cannot be opened.
type entry struct {
	fd        int
	dir, link bool
}

func (e entry) close() {
	if e.fd >= 0 {
		unix.Close(e.fd)
	}
}

type level struct {
	fd   int
	name string
	dir  bool
}

// element is of the path itself, or of a link's target.
type element struct {
	name         string
	link, target string
}

func (k kernel) walkTo(at place) (int, error) {
	w := walk{at: at, opener: k.opener, stack: []level{{fd: at.fd, dir: true}}}
	defer w.close()
	w.push(at.path, element{})
	for len(w.todo) > 0 {
		next := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		if err := w.step(next); err != nil {
			return -1, err
		}
	}
	if len(w.stack) == 1 { // the root's own descriptor is the caller's
		root, err := k.opener.open(at.fd, ".")
		if err != nil {
			return -1, at.failed("openat", err)
		}
		return root.fd, nil
	}
	found := w.top().fd
	w.stack = w.stack[:len(w.stack)-1]
	return found, nil
}

// push puts the elements of p before those that are ahead.
func (w *walk) push(p string, of element) {
	names := strings.Split(p, "/")
	for i := len(names) - 1; i >= 0; i-- {
		of.name = names[i]
		w.todo = append(w.todo, of)
	}
}

func (w *walk) step(next element) error {
	top := w.top()
	if !top.dir {
		return &NotDirectoryError{Volume: w.at.volume, Path: w.at.path, Element: w.name("")}
	}
	switch next.name {
	case "": // behind a slash: it must be a directory, no more
		return nil
	case ".", "..":
		return w.stay(next)
	}
	found, err := w.opener.open(top.fd, next.name)
	switch {
	case errors.Is(err, errChanged):
		return w.again(next)
	case err != nil:
		return w.at.failed("openat", err)
	case found.link:
		defer found.close()
		return w.follow(top.fd, found, next)
	}
	w.stack = append(w.stack, level{fd: found.fd, name: next.name, dir: found.dir})
	return nil
}

// again looks at an element once more, which has changed since the last look.
func (w *walk) again(next element) error {
	if w.changes++; w.changes > maxChanges {
		return w.at.failed("openat", unix.EAGAIN)
	}
	w.todo = append(w.todo, next)
	return nil
}

// stay is for "." and "..", which need the permission to search as names do.
func (w *walk) stay(next element) error {
	top := w.top()
	var st unix.Stat_t
	err := eintr.Do(func() error { return unix.Fstatat(top.fd, ".", &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil {
		return w.at.failed("fstatat", err)
	}
	if next.name == "." {
		return nil
	}
	if len(w.stack) == 1 {
		return &EscapeError{Volume: w.at.volume, Path: w.at.path, Element: next.link, Target: next.target}
	}
	unix.Close(top.fd)
	w.stack = w.stack[:len(w.stack)-1]
	return nil
}

// follow goes on with the target of an open link in dir.
func (w *walk) follow(dir int, link entry, next element) error {
	if w.links++; w.links > maxLinks {
		return w.at.failed("openat", unix.ELOOP)
	}
	target, magic, err := w.opener.target(w.at, dir, next.name, link)
	switch {
	case errors.Is(err, errChanged):
		return w.again(next)
	case err != nil:
		return err
	case target == "":
		return w.at.failed("readlinkat", unix.ENOENT)
	case target[0] == '/', magic:
		return &EscapeError{Volume: w.at.volume, Path: w.at.path, Element: w.name(next.name), Target: target}
	}
	w.push(target, element{link: w.name(next.name), target: target})
	return nil
}

// name is the path, from the root, of an entry of the element reached.
func (w *walk) name(entry string) string {
	names := make([]string, 0, len(w.stack))
	for _, l := range w.stack[1:] {
		names = append(names, l.name)
	}
	return path.Join(append(names, entry)...)
}

func (w *walk) top() *level { return &w.stack[len(w.stack)-1] }

func (w *walk) close() {
	for _, l := range w.stack[1:] {
		unix.Close(l.fd)
	}
}
