package sandbox

import (
	"errors"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mountapi"
)

// builder makes the root of a sandbox. It works with descriptors only: it looks
// up each path only once.
type builder struct {
	api          mountapi.Calls
	pidNamespace bool
	pivot        func(newRoot, putOld string) error // pivot_root(2)

	// root is what the program will have as "/", and exchanged whether that is
	// another directory than this process' own.
	root      int
	exchanged bool
	// rootTree is the copy of [Config].Root and rootPlace that directory, over
	// which the copy is attached; both are -1 without a Root.
	rootTree, rootPlace int
	// trees are all mounts, in order, attached nowhere yet.
	trees []tree
	// kept are all open descriptors.
	kept []int

	// applied are the trees attached so far.
	applied []appliedMount
	// skeletons are the mount ids of the directories made by cover, and
	// readOnly those that must not be written to in the end.
	skeletons map[uint64]bool
	readOnly  []int
}

// appliedMount is a mount that is in its place: a real path, no links in it.
type appliedMount struct {
	tree
	path string
}

func (b *builder) keep(fd int) int {
	b.kept = append(b.kept, fd)
	return fd
}

func (b *builder) close() {
	for _, fd := range b.kept {
		unix.Close(fd)
	}
	b.kept = nil
}

// open opens everything on the host that is to be shown.
func (b *builder) open(o *order) *Error {
	b.skeletons = map[uint64]bool{}
	b.rootTree, b.rootPlace = -1, -1
	root, err := openPath(unix.AT_FDCWD, "/", unix.O_DIRECTORY)
	if err != nil {
		return failed("open the root", "/", err)
	}
	b.root = b.keep(root)
	if o.Root != "" && path.Clean(o.Root) != "/" {
		if err := b.openRoot(o.Root); err != nil {
			return err
		}
	}
	if err := b.openOwn(o); err != nil {
		return err
	}
	for _, m := range o.Mounts {
		t, err := b.treeOf(m)
		if err != nil {
			return err.of(m.Mount)
		}
		b.trees = append(b.trees, t)
	}
	return nil
}

// assemble attaches everything and exchanges the root.
func (b *builder) assemble() *Error {
	if b.rootTree >= 0 {
		if err := b.api.MoveMount(b.rootTree, b.rootPlace); err != nil {
			return failed("attach the root", "", err)
		}
		b.root, b.exchanged = b.rootTree, true
	}
	for _, t := range b.trees {
		if err := b.apply(t); err != nil {
			return err.of(t.Mount)
		}
	}
	for _, skeleton := range b.readOnly {
		if err := b.api.MountSetattr(skeleton, false, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return failed("make a directory read-only", "", err)
		}
	}
	if !b.exchanged {
		return nil
	}
	return b.exchangeRoot()
}

// apply attaches a tree at its destination.
func (b *builder) apply(t tree) *Error {
	target, err := b.mountPoint(t)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	if isDir, err := isDirectory(target); err != nil || isDir != t.dir {
		if err != nil {
			return failed("look at the destination", t.Destination, err)
		}
		return as(ErrKindMismatch, "mount", t.Destination, nil)
	}
	if err := b.mayCover(target, t); err != nil {
		return err
	}
	if err := b.api.MoveMount(t.fd, target); err != nil {
		return failed("attach the mount", t.Destination, err)
	}
	if t.own {
		return nil
	}
	real, lookErr := realPath(t.fd)
	if lookErr != nil {
		return failed("look where the mount is", t.Destination, lookErr)
	}
	b.applied = append(b.applied, appliedMount{t, real})
	return nil
}

// mayCover refuses a mount that would appear on the host and stay there. A shared
// mount here is a Bidirectional one: all others have been made slaves or private.
// The kernel is asked, since another process may change where a path leads.
func (b *builder) mayCover(target int, t tree) *Error {
	if !slices.ContainsFunc(b.applied, func(a appliedMount) bool { return a.Propagation == mount.PropagationShared }) {
		return nil
	}
	covered, err := mountOf(target)
	if err != nil {
		return failed("find the mount of the destination", t.Destination, err)
	}
	if !isShared(covered) {
		return nil
	}
	e := as(ErrPropagates, "mount", t.Destination, nil)
	e.Advice = "it lies in a Bidirectional mount: give it a destination outside of that"
	if in, err := b.volumeAt(target); err == nil && in != nil {
		e.Advice = "it lies in the Bidirectional mount at " + in.Destination + ": give it a destination outside of that"
	}
	return e
}

// exchangeRoot makes an open directory, the root of a mount, this process'
// root and forgets the old one (pivot_root(2), with the same directory twice).
func (b *builder) exchangeRoot() *Error {
	old, err := openPath(unix.AT_FDCWD, "/", unix.O_DIRECTORY)
	if err != nil {
		return failed("open the old root", "/", err)
	}
	defer unix.Close(old)
	if err := unix.Fchdir(b.root); err != nil {
		return failed("change to the new root", "", err)
	}
	err = b.pivot(".", ".")
	if errors.Is(err, unix.EINVAL) {
		return enterRoot()
	}
	if err != nil {
		return as(ErrRoot, "pivot_root", "", err)
	}
	if err := unix.Fchdir(old); err != nil {
		return failed("change to the old root", "", err)
	}
	// Copies of Bidirectional mounts may hang in the old root: an unmount below such
	// a peer unmounts on the host too.
	if err := b.api.Mount("", ".", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return failed("cut the old root off from the host", "", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return failed("forget the old root", "", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return failed("change to the new root", "", err)
	}
	return nil
}

// enterRoot is for machines that run from their initial RAM disk, which cannot
// be exchanged (pivot_root(2)): the working directory becomes the root, and the
// old one stays in the namespace, out of sight.
func enterRoot() *Error {
	if err := unix.Chroot("."); err != nil {
		return as(ErrRoot, "chroot", "", err)
	}
	return nil
}
