package mount

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
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

// maxLinks is the kernel's limit on links in one look-up.
const maxLinks = 40

// walk looks up a path as the kernel does: links are followed, the last one if
// follow is set or a slash comes after it, and mounts are stepped into. Links
// that stand for mounts are not links to it. The error is an errno.
func (f *FakeMounter) walk(name string, follow bool) (fakePlace, error) {
	if name == "" {
		return fakePlace{}, unix.ENOENT
	}
	if !path.IsAbs(name) {
		return fakePlace{}, unix.EINVAL
	}
	at := f.top(fakePlace{f.root, "/"})
	dir := f.real(at.dentry()) // where at really is
	rest := strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		element := rest[0]
		rest = rest[1:]
		switch element {
		case "", ".":
			continue
		case "..":
			at = f.up(at)
			dir = f.real(at.dentry())
			continue
		}
		next := fakePlace{at.mount, path.Join(at.path, element)}
		if top := f.top(next); top != next {
			at = top
			dir = f.real(at.dentry())
			continue
		}
		if f.slots[next.dentry()] != nil { // what stands there is the fake's own, and no link
			at = next
			dir = f.real(at.dentry())
			continue
		}
		file := path.Join(dir, element)
		target, err := readlink(file)
		if err != nil {
			return fakePlace{}, err
		}
		if target == "" || !follow && len(rest) == 0 {
			at, dir = next, file
			continue
		}
		if links++; links > maxLinks {
			return fakePlace{}, unix.ELOOP
		}
		if path.IsAbs(target) {
			at = f.top(fakePlace{f.root, "/"})
			dir = f.real(at.dentry())
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at, nil
}

// readlink returns what the link at p points to, empty if p is no link.
func (f *FakeMounter) readlink(p fakePlace) (string, error) {
	if f.slots[p.dentry()] != nil {
		return "", nil // what stands there is the fake's own
	}
	return readlink(f.real(p.dentry()))
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
func (f *FakeMounter) isDir(p fakePlace) (bool, error) {
	if p.isMountRoot() {
		return p.mount.isDir, nil
	}
	info, err := os.Lstat(f.real(p.dentry()))
	if err != nil {
		return false, errnoOf(err)
	}
	return info.IsDir(), nil
}

// top is the root of the topmost mount on p, or p itself.
func (f *FakeMounter) top(p fakePlace) fakePlace {
	for {
		m := f.children[p]
		if m == nil {
			return p
		}
		p = fakePlace{m, m.path}
	}
}

func (f *FakeMounter) up(p fakePlace) fakePlace {
	for p.isMountRoot() && p.mount.parent != nil {
		p = p.mount.on
	}
	if p.path != "/" {
		p.path = path.Dir(p.path)
	}
	return f.top(p)
}

// errnoOf reduces an error of package os to its errno, as far as it has one.
func errnoOf(err error) error {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno
	}
	return err
}
