package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/pathin"
)

// maxLinks is how many links that lead nowhere yet are followed, as the kernel
// does with others.
const maxLinks = 40

// mountPoint opens the destination of a tree. Where there is none, one is made,
// in the machine's memory only.
func (b *builder) mountPoint(t tree) (int, *Error) {
	destination := t.Destination
	for range maxLinks {
		fd, err := openIn(b.root, destination, t.resolve())
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.ENOENT) {
			return -1, destinationFailed(destination, err)
		}
		parent, missing, failure := b.deepest(destination, t.resolve())
		if failure != nil {
			return -1, failure
		}
		through, err := b.throughLink(parent, missing, t)
		if err == nil && through == "" {
			fd, failure = b.makePoint(parent, missing, t)
		}
		unix.Close(parent)
		switch {
		case err != nil:
			return -1, destinationFailed(destination, err)
		case through == "":
			return fd, failure
		}
		destination = through
	}
	return -1, as(ErrLink, "resolve the destination", t.Destination, unix.ELOOP)
}

// resolve are the restrictions of openat2(2) for the destination.
func (t tree) resolve() uint64 {
	if t.own {
		return unix.RESOLVE_NO_SYMLINKS
	}
	return 0
}

// deepest opens the deepest parent of a destination that exists, and returns
// the names below it.
func (b *builder) deepest(destination string, resolve uint64) (int, []string, *Error) {
	names := namesOf(destination)
	for n := len(names) - 1; ; n-- {
		dir := "/" + strings.Join(names[:max(n, 0)], "/")
		fd, err := openIn(b.root, dir, resolve)
		if errors.Is(err, unix.ENOENT) && n > 0 {
			continue
		}
		if err != nil {
			return -1, nil, destinationFailed(dir, err)
		}
		missing := names[max(n, 0):]
		if len(missing) == 0 || slices.Contains(missing, "..") {
			unix.Close(fd)
			return -1, nil, as(ErrLink, "resolve the destination", destination, unix.ENOENT)
		}
		return fd, missing, nil
	}
}

// namesOf splits a path. A ".." stays: what it means behind a link only the
// kernel knows.
func namesOf(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(name string) bool { return name == "" || name == "." })
}

// throughLink returns the destination that is meant where the first missing name
// is a dangling link, as /var/run often is in small roots; else it is empty.
func (b *builder) throughLink(parent int, missing []string, t tree) (string, error) {
	link, err := openPath(parent, missing[0], unix.O_NOFOLLOW)
	if err != nil {
		return "", nil // it is missing indeed
	}
	defer unix.Close(link)
	target, err := readLink(link)
	switch {
	case errors.Is(err, unix.ENOENT): // no link: another process has made it meanwhile
		return t.Destination, nil
	case err != nil:
		return "", err
	case t.own:
		return "", unix.ELOOP
	}
	if !path.IsAbs(target) {
		dir, err := b.pathInRoot(parent)
		if err != nil {
			return "", err
		}
		target = dir + "/" + target
	}
	return target + "/" + strings.Join(missing[1:], "/"), nil
}

// pathInRoot is where an open directory is, as the program will see it.
func (b *builder) pathInRoot(fd int) (string, error) {
	root, err := realPath(b.root)
	if err != nil {
		return "", err
	}
	real, err := realPath(fd)
	rest, _ := pathin.Cut(root, real)
	return "/" + rest, err
}

// makePoint makes the mount point below a parent, which is covered first unless
// it is ours already.
func (b *builder) makePoint(parent int, missing []string, t tree) (int, *Error) {
	dir := parent
	if !b.isSkeleton(parent) {
		var failure *Error
		if dir, failure = b.cover(parent, t); failure != nil {
			return -1, failure
		}
	}
	fd, err := makeBelow(dir, missing, t.dir)
	if err != nil {
		return -1, failed("make the mount point", t.Destination, err)
	}
	return fd, nil
}

func destinationFailed(path string, err error) *Error {
	switch {
	case errors.Is(err, unix.ELOOP):
		return as(ErrLink, "resolve the destination", path, err)
	case errors.Is(err, unix.ENOTDIR):
		e := as(ErrNoMountPoint, "resolve the destination", path, err)
		e.Advice = "one of its parents is no directory"
		return e
	}
	return failed("resolve the destination", path, err)
}

func (b *builder) isSkeleton(fd int) bool {
	st, err := look(fd)
	return err == nil && b.skeletons[st.Mnt_id]
}

// volumeAt returns the mount of the list that an open file lies in, or nil.
func (b *builder) volumeAt(fd int) (*appliedMount, error) {
	if len(b.applied) == 0 {
		return nil, nil
	}
	real, err := realPath(fd)
	if err != nil {
		return nil, err
	}
	// A later mount covers an earlier one, also one that is deeper.
	for i := range slices.Backward(b.applied) {
		if pathin.In(b.applied[i].path, real) {
			return &b.applied[i], nil
		}
	}
	return nil, nil
}

// cover mounts a tmpfs over a directory that shows everything the directory has
// and can have more, and returns its descriptor.
func (b *builder) cover(dir int, t tree) (int, *Error) {
	if err := b.mayBeCovered(dir, t); err != nil {
		return -1, err
	}
	skeleton, err := b.newSkeleton(dir)
	if err != nil {
		return -1, failed("make a tmpfs", "", err)
	}
	if err := b.api.MoveMount(skeleton, dir); err != nil {
		return -1, failed("cover the parent of", t.Destination, err)
	}
	st, err := look(skeleton)
	if err != nil {
		return -1, failed("look at the tmpfs", "", err)
	}
	b.skeletons[st.Mnt_id] = true
	if err := b.fill(skeleton, dir); err != nil {
		return -1, err
	}
	isRoot, err := sameFile(dir, b.root)
	if err != nil {
		return -1, failed("look at the root", "", err)
	}
	if isRoot {
		b.root, b.exchanged = skeleton, true
	}
	return skeleton, nil
}

// mayBeCovered refuses directories whose content must not be hidden or cannot be
// shown again.
func (b *builder) mayBeCovered(dir int, t tree) *Error {
	if err := b.mayCover(dir, t); err != nil {
		return err
	}
	in, err := b.volumeAt(dir)
	if err != nil {
		return failed("look where the destination is", t.Destination, err)
	}
	if in != nil {
		e := as(ErrNoMountPoint, "make the mount point", t.Destination, nil)
		e.Advice = fmt.Sprintf("it lies in the mount at %s, in whose files nothing is made here: make it in the volume (%s) first", in.Destination, in.Source)
		return e
	}
	var fs unix.Statfs_t
	if err := eintr.Do(func() error { return unix.Fstatfs(dir, &fs) }); err != nil {
		return failed("look at the parent of", t.Destination, err)
	}
	switch fs.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC:
		e := as(ErrNoMountPoint, "make the mount point", t.Destination, nil)
		e.Advice = "its parent is the kernel's (proc, sysfs or cgroup), where nothing can be added"
		return e
	}
	return nil
}

// newSkeleton makes an empty tmpfs with the owner and mode of a directory.
func (b *builder) newSkeleton(dir int) (int, error) {
	st, err := look(dir)
	if err != nil {
		return -1, err
	}
	options := [][2]string{{"source", "podvol"}, {"mode", strconv.FormatUint(uint64(st.Mode&0o7777), 8)}}
	owned := append(options, [2]string{"uid", id(st.Uid)}, [2]string{"gid", id(st.Gid)})
	const attributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	fd, err := b.newFilesystem("tmpfs", owned, attributes)
	if errors.Is(err, unix.EINVAL) { // an owner that this user namespace does not have
		fd, err = b.newFilesystem("tmpfs", options, attributes)
	}
	if err != nil {
		return -1, err
	}
	b.keep(fd)
	var fs unix.Statfs_t
	if err := eintr.Do(func() error { return unix.Fstatfs(dir, &fs) }); err == nil && fs.Flags&unix.ST_RDONLY != 0 {
		b.readOnly = append(b.readOnly, fd)
	}
	return fd, nil
}

// newFilesystem makes a file system that is attached nowhere.
func (b *builder) newFilesystem(fstype string, options [][2]string, attributes uint64) (int, error) {
	context, err := b.api.Fsopen(fstype)
	if err != nil {
		return -1, err
	}
	defer unix.Close(context)
	for _, option := range options {
		if err := b.api.SetString(context, option[0], option[1]); err != nil {
			return -1, err
		}
	}
	if err := b.api.Create(context); err != nil {
		return -1, err
	}
	return b.api.Fsmount(context, attributes)
}

// fill shows every entry of the directory below in the skeleton above it.
func (b *builder) fill(skeleton, dir int) *Error {
	names, err := namesIn(dir)
	if err != nil {
		e := failed("list the parent of a mount point that does not exist", "", err)
		if errors.Is(err, unix.EACCES) {
			e.Advice = "this user may not read it; make the mount point first, or choose another"
		}
		return e
	}
	for _, name := range names {
		err := b.show(skeleton, dir, name)
		if err != nil && !errors.Is(err, unix.ENOENT) { // gone since
			e := failed("show again", name, err)
			if errors.Is(err, unix.EINVAL) {
				e.Advice = "it may be an unbindable mount; make the mount point first, or choose another"
			}
			return e
		}
	}
	return nil
}

// show binds one entry into the skeleton, or makes the link again.
func (b *builder) show(skeleton, dir int, name string) error {
	entry, err := openPath(dir, name, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(entry)
	st, err := look(entry)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return copyLink(skeleton, entry, name, st)
	}
	copied, err := b.api.OpenTree(entry, "", true)
	if err != nil {
		return err
	}
	defer unix.Close(copied)
	point, err := makeEntry(skeleton, name, st.Mode&unix.S_IFMT == unix.S_IFDIR)
	if err != nil {
		return err
	}
	defer unix.Close(point)
	return b.api.MoveMount(copied, point)
}

func copyLink(skeleton, link int, name string, st unix.Statx_t) error {
	target, err := readLink(link)
	if err != nil {
		return err
	}
	if err := unix.Symlinkat(target, skeleton, name); err != nil {
		return err
	}
	err = unix.Fchownat(skeleton, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
		return nil // an owner that this user namespace does not have
	}
	return err
}

// makeEntry makes an empty directory or file and opens it.
func makeEntry(dir int, name string, isDir bool) (int, error) {
	if isDir {
		if err := unix.Mkdirat(dir, name, 0o755); err != nil {
			return -1, err
		}
		return openPath(dir, name, unix.O_NOFOLLOW|unix.O_DIRECTORY)
	}
	if err := unix.Mknodat(dir, name, unix.S_IFREG|0o644, 0); err != nil {
		return -1, err
	}
	return openPath(dir, name, unix.O_NOFOLLOW)
}

// makeBelow makes directories below one that is ours, and the mount point in the
// last.
func makeBelow(dir int, names []string, isDir bool) (int, error) {
	last := len(names) - 1
	parent := dir
	for i, name := range names {
		next, err := makeEntry(parent, name, isDir || i < last)
		if parent != dir {
			unix.Close(parent)
		}
		if err != nil {
			return -1, err
		}
		parent = next
	}
	return parent, nil
}

// namesIn lists a directory that is open as a path only.
func namesIn(dir int) ([]string, error) {
	fd, err := eintr.Get(func() (int, error) {
		return unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "")
	defer file.Close()
	return file.Readdirnames(-1)
}

// sameFile reports whether two descriptors are the same file of the same mount.
func sameFile(a, b int) (bool, error) {
	x, err := look(a)
	if err != nil {
		return false, err
	}
	y, err := look(b)
	return x.Mnt_id == y.Mnt_id && x.Ino == y.Ino, err
}
