package sharedirs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume"
)

// HoldsVolumes refuses to empty a released volume that is, or holds, a base: book is
// the directory that says so, such as "/data/.podvol".
func HoldsVolumes(path, book string, on Medium) error {
	return &volume.Failure{
		Cause: ErrHoldsVolumes, Subject: book,
		What: fmt.Sprintf("%s has a directory .podvol, %s, so volumes are provisioned there and it is not emptied", path, book),
		Next: fmt.Sprintf("give the PersistentVolume the reclaim policy %s, or, if nobody needs what is there, remove .podvol%s", v1.PersistentVolumeReclaimRetain, on.where()),
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
