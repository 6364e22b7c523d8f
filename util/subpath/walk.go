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
	// noSymFollow is what statfs(2) says of a mount with MS_NOSYMFOLLOW
	// (Linux 5.10, include/linux/statfs.h).
	noSymFollow = 0x2000
)

// walk resolves a path as openat2 with RESOLVE_BENEATH does. Each element is
// opened in the directory before it without following a link, so that the file
// checked is the one used. "..", which only links can contain, goes back to the
// descriptor it came from, wherever that directory is by now. A path of n
// elements may take n descriptors while it is walked.
type walk struct {
	at    place
	stack []level   // from the root to the element reached
	todo  []element // the elements ahead, the next one last
	links int
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

func walkTo(at place) (int, error) {
	w := walk{at: at, stack: []level{{fd: at.fd, dir: true}}}
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
		fd, err := openPath(at.fd, ".", unix.O_DIRECTORY)
		if err != nil {
			return -1, at.failed("openat", err)
		}
		return fd, nil
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
	fd, err := openPath(top.fd, next.name, unix.O_NOFOLLOW|unix.O_DIRECTORY) // mounts an automount
	if err == nil {
		w.stack = append(w.stack, level{fd: fd, name: next.name, dir: true})
		return nil
	}
	if errors.Is(err, unix.ENOTDIR) {
		fd, err = openPath(top.fd, next.name, unix.O_NOFOLLOW)
	}
	if err != nil {
		return w.at.failed("openat", err)
	}
	st, err := stat(fd)
	if err != nil {
		unix.Close(fd)
		return w.at.failed("fstat", err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		defer unix.Close(fd)
		return w.follow(fd, next.name)
	}
	w.stack = append(w.stack, level{fd: fd, name: next.name, dir: isDir(st)})
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

// follow goes on with the target of an open link.
func (w *walk) follow(fd int, name string) error {
	if w.links++; w.links > maxLinks {
		return w.at.failed("openat", unix.ELOOP)
	}
	target, err := readLink(fd)
	if err != nil {
		return w.at.failed("readlinkat", err)
	}
	var system unix.Statfs_t
	if err := eintr.Do(func() error { return unix.Fstatfs(fd, &system) }); err != nil {
		return w.at.failed("fstatfs", err)
	}
	switch {
	case system.Flags&noSymFollow != 0:
		return w.at.failed("openat", unix.ELOOP)
	case target == "":
		return w.at.failed("readlinkat", unix.ENOENT)
	case target[0] == '/', system.Type == unix.PROC_SUPER_MAGIC && isMagic(target):
		return &EscapeError{Volume: w.at.volume, Path: w.at.path, Element: w.name(name), Target: target}
	}
	w.push(target, element{link: w.name(name), target: target})
	return nil
}

// isMagic tells the links of /proc that are no paths, like "pipe:[4711]" and
// "(unreachable)/file". Taken for a path, none of them would lead out either.
func isMagic(target string) bool {
	return target[0] == '(' || strings.Contains(target, ":")
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

func openPath(dir int, name string, flags int) (int, error) {
	return eintr.Get(func() (int, error) { return unix.Openat(dir, name, unix.O_PATH|unix.O_CLOEXEC|flags, 0) })
}

func readLink(fd int) (string, error) {
	buffer := make([]byte, maxPath)
	n, err := eintr.Get(func() (int, error) { return unix.Readlinkat(fd, "", buffer) })
	if err != nil {
		return "", err
	}
	return string(buffer[:n]), nil
}
