package sharedirs

import (
	"context"
	"os"
)

// HasLeft reports whether a volume's path is no longer its own: its mark names
// another volume, or nothing is there. All that [Remove] still has to delete is
// then in the trash, where no pod sees it, so users of the path do not matter. It
// changes nothing, but completes a bookkeeping with a missing part. Errors are as
// in [Remove].
func HasLeft(ctx context.Context, root *os.File, r Removal) (bool, error) {
	left, err := newBase(root).hasLeft(ctx, r.Path, r.Owner)
	return left, r.On.named(err)
}

func (b *base) hasLeft(ctx context.Context, p string, owner Owner) (bool, error) {
	if err := CheckPath(p); err != nil {
		return false, err
	}
	k, err := b.openBook(ctx, false)
	if err != nil || k == nil {
		return false, err
	}
	defer k.close()
	m, err := readMark(k.marks, keyOf(p), p)
	switch {
	case err != nil:
		return false, err
	case m == nil:
		err := b.unmarked(k, p, owner, Delete)
		return err == nil, err
	}
	return m.Volume != owner.Volume, nil
}
