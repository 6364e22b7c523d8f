package sharedirs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
)

func (b *base) trashed(k *book, m *mark, name string, err error) error {
	return &Error{Cause: ErrTrashed, Path: b.name(m.Path), Other: path.Join(k.trash.Name(), name), Owner: m.Owner, Err: err}
}

// inTrash returns the name that the directory of a mark has in the trash; empty:
// it is not there. In general that is the mark's own; but a deletion that was
// about to move another directory moves this one if its path has changed hands
// meanwhile, and may die before it has put it back.
func (b *base) inTrash(k *book, m *mark) (string, error) {
	names, err := list(k.trash)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if there, err := b.kernel.look(k.trash, name); err == nil && there.same(m.Directory) {
			return name, nil
		}
	}
	return "", nil
}

// fetch moves a directory out of the trash, or to another name there, which is
// errChanged.
func (b *base) fetch(ctx context.Context, k *book, name string, to *os.File, newName string) error {
	err := b.do(ctx, "fetch", func() error { return b.kernel.rename(k.trash, name, to, newName) })
	if err != nil && !isGone(err) && !isTaken(err) {
		return err
	}
	return changed(errors.Join(syncDir(to), syncDir(k.trash)))
}

// reinstate gives a path its mark back that was moved to the trash with the
// directory, so that this one can follow. The mark is written anew: renaming one
// of two links to a file over the other would leave both.
func (b *base) reinstate(ctx context.Context, k *book, m *mark) error {
	err := b.do(ctx, "reinstate", func() error { return writeMark(k.marks, m) })
	if errors.Is(err, fs.ErrExist) {
		now, err := readMark(k.marks, keyOf(m.Path), m.Path)
		switch {
		case err != nil || now == nil:
			return changed(err)
		case now.Owner != m.Owner || now.Directory != m.Directory:
			return b.trashed(k, m, m.id(), b.ownedBy(now))
		}
	} else if err != nil {
		return err
	}
	return b.forget(ctx, k, m.id())
}

// bringBack moves the directory of a mark from the trash to its path, which is
// errChanged; if it is not there, nothing happens.
func (b *base) bringBack(ctx context.Context, k *book, m *mark) error {
	name, err := b.inTrash(k, m)
	if err != nil || name == "" {
		return err
	}
	dir, err := b.makeParents(ctx, k, m.Path)
	if errors.Is(err, ErrNested) || errors.Is(err, ErrOccupied) {
		return b.trashed(k, m, name, err)
	}
	if err != nil {
		return err
	}
	defer b.close(dir)
	err = b.do(ctx, "bring back", func() error { return b.kernel.rename(k.trash, name, dir, path.Base(m.Path)) })
	switch {
	case isTaken(err):
		if there, err := b.kernel.look(k.trash, name); err != nil || !there.same(m.Directory) {
			return errChanged
		}
		return b.trashed(k, m, name, &Error{Cause: ErrOccupied, Path: b.name(m.Path), Reason: "it has taken the volume's place"})
	case isGone(err):
		return errChanged
	case err != nil:
		return err
	}
	return changed(errors.Join(syncDir(dir), syncDir(k.trash)))
}
