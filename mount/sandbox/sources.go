package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
)

// tree is a copy of a mount, with the mounts below it, that is attached nowhere yet.
// No process can see it, so a read-only mount never was writable.
type tree struct {
	Mount
	fd  int
	dir bool
	// own: it is one of the root's own (/proc, /sys, /dev), whose place may be
	// no link.
	own bool
}

// openRoot copies the directory that will be the root.
func (b *builder) openRoot(dir string) *Error {
	place, err := openPath(unix.AT_FDCWD, dir, unix.O_DIRECTORY)
	if err != nil {
		return sourceFailed("open the root", dir, err)
	}
	b.rootPlace = b.keep(place)
	if b.rootTree, err = b.api.OpenTree(place, "", true); err != nil {
		b.rootTree = -1
		return failed("copy the mount of the root", dir, err)
	}
	b.keep(b.rootTree)
	if err := b.api.MountSetattr(b.rootTree, true, unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
		return failed("make the root private", dir, err)
	}
	return nil
}

// openOwn opens what a root has beside the caller's mounts.
func (b *builder) openOwn(o *order) *Error {
	for _, m := range []Mount{{Destination: "/proc"}, {Destination: "/sys", RecursiveReadOnly: true}, {Destination: "/dev", Propagation: mount.PropagationSlave}} {
		fresh := m.Destination == "/proc" && b.pidNamespace
		if b.rootTree < 0 && !fresh || slices.ContainsFunc(o.Mounts, func(asked orderedMount) bool { return asked.Destination == m.Destination }) {
			continue
		}
		if !fresh && b.rootTree >= 0 && b.hasMount(m.Destination) {
			continue
		}
		var t tree
		var err *Error
		if fresh {
			t, err = b.freshProc(m)
		} else {
			m.Source = m.Destination
			t, err = b.openSource(m, noIDMap)
		}
		if err != nil {
			return err.of(m)
		}
		t.own = true
		b.trees = append(b.trees, t)
	}
	return nil
}

// hasMount reports whether the new root has a mount there already.
func (b *builder) hasMount(destination string) bool {
	fd, err := openIn(b.rootTree, destination, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return false // it is checked again when it is needed
	}
	defer unix.Close(fd)
	st, err := look(fd)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// freshProc makes the /proc of a new pid namespace.
func (b *builder) freshProc(m Mount) (tree, *Error) {
	const attributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	fd, err := b.newFilesystem("proc", nil, attributes)
	if err == nil {
		return tree{Mount: m, fd: b.keep(fd), dir: true}, nil
	}
	e := failed("mount a /proc of its own", "", err)
	if errors.Is(err, unix.EPERM) {
		e.Advice = "a user namespace may not where parts of the machine's /proc are covered, as in most containers; do without a pid namespace"
	}
	return tree{}, e
}

// noIDMap stands for the user namespace of a mount that shows owners as they are.
const noIDMap = -1

// treeOf returns the copy that the parent has made, or makes one.
func (b *builder) treeOf(m orderedMount) (tree, *Error) {
	if m.Tree == 0 {
		return b.openSource(m.Mount, noIDMap)
	}
	isDir, err := isDirectory(b.keep(m.Tree))
	if err != nil {
		return tree{}, failed("look at the source", m.Source, err)
	}
	return tree{Mount: m.Mount, fd: m.Tree, dir: isDir}, nil
}

// openSource copies the source and gives the copy all its attributes. idMap is a
// descriptor of a user namespace.
func (b *builder) openSource(m Mount, idMap int) (tree, *Error) {
	source, err := openPath(unix.AT_FDCWD, m.Source, 0)
	if err != nil {
		return tree{}, sourceFailed("open the source", m.Source, err)
	}
	defer unix.Close(source)
	isDir, err := isDirectory(source)
	if err != nil {
		return tree{}, failed("look at the source", m.Source, err)
	}
	if isDir == m.File {
		return tree{}, as(ErrKindMismatch, "open the source", m.Source, nil)
	}
	if m.Propagation == mount.PropagationShared {
		if err := checkShared(source, m.Source); err != nil {
			return tree{}, err
		}
	}
	fd, err := b.api.OpenTree(source, "", true)
	if err != nil {
		return tree{}, copyFailed(m.Source, err)
	}
	t := tree{Mount: m, fd: b.keep(fd), dir: isDir}
	return t, b.configure(t, idMap)
}

// configure sets the attributes of a tree that no process sees yet.
func (b *builder) configure(t tree, idMap int) *Error {
	if idMap != noIDMap {
		change := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(idMap)}
		if err := b.api.MountSetattr(t.fd, true, change); err != nil {
			return as(ErrIDMap, "show it with other owners", t.Source, host.NewIDMapError(t.Source, err))
		}
	}
	if t.ReadOnly || t.RecursiveReadOnly {
		if err := b.api.MountSetattr(t.fd, t.RecursiveReadOnly, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return failed("make it read-only", t.Source, err)
		}
	}
	if flags := t.flags(); flags != 0 {
		if err := b.api.MountSetattr(t.fd, false, unix.MountAttr{Attr_set: flags}); err != nil {
			return failed("set the flags of", t.Source, err)
		}
	}
	if err := b.api.MountSetattr(t.fd, true, unix.MountAttr{Propagation: propagation(t.Propagation)}); err != nil {
		return failed("set the propagation", t.Source, err)
	}
	return nil
}

func (m Mount) flags() (flags uint64) {
	for _, f := range []struct {
		set  bool
		flag uint64
	}{{m.NoExec, unix.MOUNT_ATTR_NOEXEC}, {m.NoSUID, unix.MOUNT_ATTR_NOSUID}, {m.NoDev, unix.MOUNT_ATTR_NODEV}} {
		if f.set {
			flags |= f.flag
		}
	}
	return flags
}

func propagation(word mount.Propagation) uint64 {
	switch word {
	case mount.PropagationSlave:
		return unix.MS_SLAVE
	case mount.PropagationShared:
		return unix.MS_SHARED
	}
	return unix.MS_PRIVATE
}

// checkShared refuses a source that is no peer of anything.
func checkShared(source int, path string) *Error {
	found, err := mountOf(source)
	if err != nil {
		return failed("find the mount of", path, err)
	}
	if isShared(found) {
		return nil
	}
	e := as(ErrNotShared, "set the propagation of", path, fmt.Errorf("it lies in the mount at %s", found.Mountpoint))
	e.Advice = "share that on the host (mount --make-rshared " + found.Mountpoint + "), or ask for HostToContainer"
	return e
}

// mountOf returns the mount that an open file lies in.
func mountOf(fd int) (*mountinfo.Info, error) {
	st, err := look(fd)
	if err != nil {
		return nil, err
	}
	found, err := mountinfo.GetMounts(func(info *mountinfo.Info) (skip, stop bool) {
		return uint64(info.ID) != st.Mnt_id, uint64(info.ID) == st.Mnt_id
	})
	if err == nil && len(found) == 0 {
		err = errors.New("it is in no mount table")
	}
	if err != nil {
		return nil, err
	}
	return found[0], nil
}

func isShared(m *mountinfo.Info) bool { return strings.Contains(m.Optional, "shared:") }

func sourceFailed(op, path string, err error) *Error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return as(ErrNoSource, op, path, err)
	}
	return failed(op, path, err)
}

func copyFailed(path string, err error) *Error {
	e := failed("copy the mount of", path, err)
	if errors.Is(err, unix.EINVAL) {
		e.Advice = "the mount it lies in is unbindable"
	}
	return e
}
