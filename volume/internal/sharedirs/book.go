package sharedirs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
)

const (
	bookDir       = ".podvol"
	archivePrefix = "archived-"
)

// CheckPath refuses a path that no volume below a base can have: it refuses as
// [CheckRelative], and also names for bookkeeping and archives. The error is a
// *[Error].
func CheckPath(p string) error {
	if err := CheckRelative(p); err != nil {
		return err
	}
	for element := range strings.SplitSeq(p, "/") {
		switch {
		case isBook(element):
			return &pathError{template: p, reason: `the name ".podvol" is kept for podvol's own bookkeeping`}
		case strings.HasPrefix(strings.ToLower(element), archivePrefix):
			return &pathError{template: p, reason: `names that begin with "archived-" are kept for deleted volumes`}
		}
	}
	return nil
}

// base is the directory below which volumes are made, and how that is done.
type base struct {
	root   *os.File
	kernel kernel
	// step is a seam for tests: it is called before and after each change, and
	// its error ends everything, as a crash would.
	step func(name string) error
	// agent is the user that this process is for itself.
	agent uint32
	// What a removal has found: nothing, or what it has deleted.
	missing, emptied atomic.Bool
}

func newBase(root *os.File) *base {
	return &base{root: root, kernel: kernel{openat2: true, noReplace: true}, agent: uint32(unix.Geteuid())}
}

// do makes one change.
func (b *base) do(ctx context.Context, name string, change func() error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if b.step == nil {
		return change()
	}
	if err := b.step("before " + name); err != nil {
		return err
	}
	err := change()
	if crash := b.step("after " + name); crash != nil {
		return crash
	}
	return err
}

// book is the open bookkeeping.
type book struct{ marks, parents, staging, trash *os.File }

func (k *book) close() {
	for _, d := range []*os.File{k.marks, k.parents, k.staging, k.trash} {
		if d != nil {
			d.Close()
		}
	}
}

// openBook opens the bookkeeping. Where there is none it is made, or the
// result is nil.
func (b *base) openBook(ctx context.Context, create bool) (*book, error) {
	top, err := b.openOwn(ctx, b.root, bookDir, create)
	if err != nil || top == nil {
		return nil, err
	}
	defer top.Close()
	ours, err := b.trust(top)
	if err != nil {
		return nil, err
	}
	k := &book{}
	for _, d := range []struct {
		name string
		dir  **os.File
	}{{"marks", &k.marks}, {"parents", &k.parents}, {"staging", &k.staging}, {"trash", &k.trash}} {
		*d.dir, err = b.openOwn(ctx, top, d.name, true)
		if err == nil {
			err = checkOwner(*d.dir, ours)
		}
		if err != nil {
			k.close()
			return nil, err
		}
	}
	return k, nil
}

func (b *base) openOwn(ctx context.Context, dir *os.File, name string, create bool) (*os.File, error) {
	opened, err := b.kernel.openDir(dir, name, unix.O_RDONLY)
	if !errors.Is(err, fs.ErrNotExist) {
		return opened, err
	}
	if !create {
		return nil, nil
	}
	err = b.do(ctx, "make "+name, func() error { return mkdir(dir, name, 0o700) })
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := syncDir(dir); err != nil {
		return nil, err
	}
	return b.kernel.openDir(dir, name, unix.O_RDONLY)
}

// syncDir brings new and renamed entries of dir to disk, which may be open for
// finding others only. What the server does not let be listed has no disk here.
func syncDir(dir *os.File) error {
	fd, err := openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.EACCES) {
		return nil
	}
	if err == nil {
		err = eintr.Do(func() error { return unix.Fsync(fd) })
		unix.Close(fd)
	}
	return failed("sync", dir.Name(), err)
}

// moveMark moves a mark out of the way, if it is still this one: else the other
// one is put back, and the error is errChanged.
func (b *base) moveMark(ctx context.Context, k *book, m *mark, to string) error {
	key := keyOf(m.Path)
	return b.do(ctx, "move mark", func() error {
		from, trash := int(k.marks.Fd()), int(k.trash.Fd())
		err := eintr.Do(func() error { return unix.Renameat(from, key, trash, to) })
		if errors.Is(err, unix.ENOENT) {
			return errChanged
		}
		if err != nil {
			return failed("rename", path.Join(k.marks.Name(), key), err)
		}
		moved, err := readMark(k.trash, to, m.Path)
		if err != nil || moved == nil || moved.Owner != m.Owner || moved.Directory != m.Directory {
			back := eintr.Do(func() error { return unix.Linkat(trash, to, from, key, 0) })
			if back == nil || errors.Is(back, unix.EEXIST) {
				unix.Unlinkat(trash, to, 0)
			}
			return changed(err)
		}
		return errors.Join(syncDir(k.trash), syncDir(k.marks))
	})
}

// dropMark removes a mark, if it is still this one.
func (b *base) dropMark(ctx context.Context, k *book, m *mark) error {
	if err := b.moveMark(ctx, k, m, m.id()+markSuffix); err != nil {
		return err
	}
	return b.forget(ctx, k, m.id())
}

// forget removes a mark that was moved to the trash.
func (b *base) forget(ctx context.Context, k *book, id string) error {
	name := id + markSuffix
	return b.do(ctx, "forget", func() error {
		return failed("remove", path.Join(k.trash.Name(), name), durable.RemoveAt(k.trash, name))
	})
}

// errChanged says that another process has changed something at the same time.
var errChanged = errors.New("changed meanwhile")

// changed is errChanged, unless there is another error.
func changed(err error) error {
	if err != nil {
		return err
	}
	return errChanged
}

// repeat tries again after errChanged.
func repeat(path string, try func() error) error {
	err := retry.Patiently(errChanged, try)
	if errors.Is(err, errChanged) {
		return &Error{Cause: ErrBusy, Path: path, Err: unix.EAGAIN}
	}
	return err
}

// HoldsVolumes refuses to empty a released volume that is, or holds, a base: book is
// the directory that says so, such as "/data/.podvol".
func HoldsVolumes(path, book string, on Medium) error {
	return &volume.Failure{
		Cause: ErrHoldsVolumes, Subject: book,
		What: fmt.Sprintf("%s has a directory .podvol, %s, so volumes are provisioned there and it is not emptied", path, book),
		Next: fmt.Sprintf("give the PersistentVolume the reclaim policy %s, or, if the data is not needed, remove .podvol%s", v1.PersistentVolumeReclaimRetain, on.where()),
	}
}

// InBook reports whether a path, by its name alone, leads to a base's bookkeeping
// or into it, which is no volume's.
func InBook(p string) bool {
	for element := range strings.SplitSeq(p, "/") {
		if isBook(element) {
			return true
		}
	}
	return false
}

// isBook holds for any case: some servers do not tell upper case from lower.
func isBook(element string) bool { return strings.EqualFold(element, bookDir) }

// BookOf returns the path of a base's bookkeeping.
func BookOf(base string) string { return path.Join(base, bookDir) }

// HasBook reports whether directories were provisioned in this one: whether it
// has a directory ".podvol". It looks at neither its owner nor its content. Root
// may have been opened with O_PATH. The error is a *[io/fs.PathError].
func HasBook(root *os.File) (bool, error) {
	var st unix.Stat_t
	err := eintr.Do(func() error { return unix.Fstatat(int(root.Fd()), bookDir, &st, unix.AT_SYMLINK_NOFOLLOW) })
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, &os.PathError{Op: "stat", Path: path.Join(root.Name(), bookDir), Err: err}
	}
	return st.Mode&unix.S_IFMT == unix.S_IFDIR, nil
}

// CheckOutside refuses a path below root that is a volume made there, or lies in
// one. It need not exist. Errors match [ErrNested], or are Make's about the
// bookkeeping.
func CheckOutside(ctx context.Context, root *os.File, p string, on Medium) error {
	return on.named(newBase(root).checkOutside(ctx, p))
}

func (b *base) checkOutside(ctx context.Context, p string) error {
	if err := CheckRelative(p); err != nil {
		return err
	}
	k, err := b.openBook(ctx, false)
	if err != nil || k == nil {
		return err
	}
	defer k.close()
	for _, dir := range append(above(p), p) {
		if err := b.notIn(k, dir, p); err != nil {
			return err
		}
	}
	return nil
}
