package fakemount

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/internal/mountopt"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/pathin"
)

// fakeDentry is a file of a file system: what a path leads to, mounts aside.
type fakeDentry struct {
	super *fakeSuper
	path  string // absolute and clean, from the file system's root
}

// fakePlace is a file as seen through a mount.
type fakePlace struct {
	mount *fakeMount
	path  string // as in fakeDentry
}

func (p fakePlace) dentry() fakeDentry { return fakeDentry{p.mount.super, p.path} }

func (p fakePlace) isMountRoot() bool { return p.path == p.mount.path }

// walk looks up a path as the kernel does: links are followed, the last one if
// follow is set or a slash comes after it, and mounts are stepped into. Links
// that stand for mounts are not links to it. The error is an errno.
func (ns *namespace) walk(name string, follow bool) (fakePlace, error) {
	at, _, err := ns.walkTo(name, follow)
	return at, err
}

// walkTo is walk, and reports whether what it came to is a link.
func (ns *namespace) walkTo(name string, follow bool) (at fakePlace, isLink bool, err error) {
	if name == "" {
		return fakePlace{}, false, unix.ENOENT
	}
	if !path.IsAbs(name) {
		return fakePlace{}, false, unix.EINVAL
	}
	at = ns.top(fakePlace{ns.root, "/"})
	dir := ns.real(at.dentry()) // where at really is
	rest := strings.Split(name[1:], "/")
	for links := 0; len(rest) > 0; {
		if below, n := ns.plain(at, dir, rest); n > 0 {
			at.path, dir, rest = join(at.path, below), join(dir, below), rest[n:]
		}
		element := rest[0]
		rest, isLink = rest[1:], false
		switch element {
		case "", ".":
			continue
		case "..":
			at = ns.up(at)
			dir = ns.real(at.dentry())
			continue
		}
		next := fakePlace{at.mount, join(at.path, element)}
		// Where something is mounted, or was, the fake's own stands, and no link.
		if top := ns.top(next); top != next || ns.slots[next.dentry()] != nil {
			at = top
			dir = ns.real(at.dentry())
			continue
		}
		file := join(dir, element)
		target, err := readlink(file)
		if err != nil {
			return fakePlace{}, false, err
		}
		if target == "" || !follow && len(rest) == 0 {
			at, dir, isLink = next, file, target != ""
			continue
		}
		if links++; links > mounttable.MaxLinks {
			return fakePlace{}, false, unix.ELOOP
		}
		if next.mount == ns.root && mountopt.IsDescriptor(next.path) {
			if shown, ok := ns.shownAt(target); ok {
				at, dir = shown, target
				continue
			}
		}
		if path.IsAbs(target) {
			at = ns.top(fakePlace{ns.root, "/"})
			dir = ns.real(at.dentry())
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at, isLink, nil
}

// plain returns how many of these elements, and never the last, are no more
// than directories, in which nothing is mounted and no link leads elsewhere,
// and the path that they make. One system call tells it of all of them, which is
// what most of a mount would cost otherwise.
func (ns *namespace) plain(at fakePlace, dir string, rest []string) (below string, n int) {
	if len(rest) < 3 { // not worth it
		return "", 0
	}
	base, all := len(strings.TrimSuffix(at.path, "/"))+1, join(at.path, strings.Join(rest[:len(rest)-1], "/"))
	end := base
	for ; n < len(rest)-1; n++ {
		e := rest[n]
		place := fakePlace{at.mount, all[:end+len(e)]}
		if e == "" || e == "." || e == ".." || ns.children[place] != nil || ns.slots[place.dentry()] != nil {
			break
		}
		end += len(e) + 1
	}
	if n < 2 {
		return "", 0
	}
	below = all[base : end-1]
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := eintr.Get(func() (int, error) { return unix.Openat2(unix.AT_FDCWD, join(dir, below), how) })
	if err != nil {
		return "", 0 // one after the other tells why
	}
	unix.Close(fd)
	return below, n
}

// join is [path.Join] of what is clean already.
func join(dir, below string) string {
	if dir == "/" {
		return dir + below
	}
	return dir + "/" + below
}

// readlink returns what a link points to, empty if it is no link.
func readlink(name string) (string, error) {
	var target [unix.PathMax]byte
	n, err := unix.Readlink(name, target[:])
	if errors.Is(err, unix.EINVAL) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return string(target[:n]), nil
}

// isDir reports whether p, which is no link, is a directory.
func (ns *namespace) isDir(p fakePlace) (bool, error) {
	if p.isMountRoot() {
		return p.mount.isDir, nil
	}
	info, err := os.Lstat(ns.real(p.dentry()))
	if err != nil {
		return false, errnoOf(err)
	}
	return info.IsDir(), nil
}

// top is the root of the topmost mount on p, or p itself.
func (ns *namespace) top(p fakePlace) fakePlace {
	for {
		m := ns.children[p]
		if m == nil {
			return p
		}
		p = fakePlace{m, m.path}
	}
}

func (ns *namespace) up(p fakePlace) fakePlace {
	for p.isMountRoot() && p.mount.parent != nil {
		p = p.mount.on
	}
	if p.path != "/" {
		p.path = path.Dir(p.path)
	}
	return ns.top(p)
}

// errnoOf reduces an error of package os to its errno, as far as it has one.
func errnoOf(err error) error {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno
	}
	return err
}

// shownAt finds what a descriptor leads to, of which the kernel only tells where
// it really is: through which of the fake's mounts it was opened is not known.
// It is taken to be the one that shows least around it, and of those that show
// the same the newest. A file that no mount shows but the root is looked up by
// its name.
func (ns *namespace) shownAt(real string) (fakePlace, bool) {
	var at fakePlace
	longest := -1
	for _, m := range ns.mounts { // oldest first
		base := ns.real(fakeDentry{m.super, m.path})
		if m == ns.root || len(base) < longest || !pathin.In(base, real) {
			continue
		}
		longest = len(base)
		at = fakePlace{m, path.Join(m.path, strings.TrimPrefix(real, base))}
	}
	return at, longest >= 0
}

// fakeNames counts, for every path, the names that the fake keeps at and below
// it. Most moved directories hold none, and then not every mount must be looked
// at.
type fakeNames map[string]int

// add counts a clean, absolute name; with a negative number it is forgotten. An
// empty name is none.
func (n fakeNames) add(name string, times int) {
	for p := name; p != ""; p = p[:strings.LastIndexByte(p, '/')] {
		n[p] += times
		if n[p] == 0 {
			delete(n, p)
		}
	}
}

// rename sets a name that is kept, and counts it.
func (ns *namespace) rename(kept *string, name string) {
	ns.names.add(*kept, -1)
	*kept = name
	ns.names.add(name, 1)
}

// serve sets what mounts of source show.
func (ns *namespace) serve(source, dir string) {
	ns.names.add(ns.sources[source], -1)
	ns.sources[source] = dir
	ns.names.add(dir, 1)
}
