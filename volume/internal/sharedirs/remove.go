package sharedirs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/removetree"
)

// Removal says which directory is to go.
type Removal struct {
	// Path is below the base, as [CheckPath] wants it.
	Path  string
	Owner Owner
	// AtLeast is what becomes of it, unless its mark keeps more.
	AtLeast OnDelete
	// On is where root lies.
	On Medium
	// Missing, if not nil, is called where nothing of the volume's was there.
	Missing func()
}

// Remove does away with the directory of a volume as its mark says, or as AtLeast says if
// that keeps more, and with the empty directories above it that were made for volumes.
//
//   - It touches nothing unless the mark is this owner's and the directory is the mark's.
//   - Removing a missing or retained directory is success, also where another volume has
//     the path by now.
//   - After a failure or a crash a second call goes on. If its AtLeast keeps more, it keeps
//     what the first has not deleted yet, at its path again if it must be.
//   - Errors are as in [Make], with [ErrTrashed] for a directory that is to be kept and
//     cannot be moved back, and [ErrNoBook], unless AtLeast is Retain. A mount in the
//     directory is a *[removetree.MountError]; it is kept, in the trash.
func Remove(ctx context.Context, root *os.File, r Removal) error {
	b := newBase(root)
	err := b.remove(ctx, r.Path, r.Owner, r.AtLeast)
	if err == nil && r.Missing != nil && b.missing.Load() && !b.emptied.Load() {
		r.Missing()
	}
	return r.On.named(err)
}

func (b *base) remove(ctx context.Context, p string, owner Owner, atLeast OnDelete) error {
	if err := CheckPath(p); err != nil {
		return err
	}
	k, err := b.openBook(ctx, false)
	if err != nil {
		return err
	}
	if k == nil {
		if atLeast == Retain {
			return nil
		}
		return &Error{Cause: ErrNoBook, Other: b.root.Name(), Path: p, Owner: owner}
	}
	defer k.close()
	return repeat(b.name(p), func() error {
		if err := b.emptyTrash(ctx, k, p, owner, atLeast); err != nil {
			return err
		}
		if err := b.tryRemove(ctx, k, p, owner, atLeast); err != nil {
			return whileDeleting(err)
		}
		return b.prune(ctx, k, p)
	})
}

// whileDeleting has an error give the advice that suits a deletion.
func whileDeleting(err error) error {
	each(err, func(e *Error) { e.deleting = true })
	return err
}

func (b *base) tryRemove(ctx context.Context, k *book, p string, owner Owner, atLeast OnDelete) error {
	m, err := readMark(k.marks, keyOf(p), p)
	switch {
	case err != nil:
		return err
	case m == nil:
		return b.unmarked(k, p, owner, atLeast)
	case m.Volume != owner.Volume:
		b.missing.Store(true)
		return nil // a later one's: this one's path was free
	case m.Owner != owner:
		return b.ownedBy(m)
	}
	switch m.OnDelete.stricter(atLeast) {
	case Retain:
		return b.retain(ctx, k, m)
	case Archive:
		return b.archive(ctx, k, m)
	}
	return b.delete(ctx, k, m)
}

// retain leaves a directory where it is. That it was is kept: a second call must
// not take it for a stranger's.
func (b *base) retain(ctx context.Context, k *book, m *mark) error {
	if dir, _ := b.find(m); dir != nil {
		b.close(dir)
	} else if err := b.bringBack(ctx, k, m); err != nil {
		return err
	}
	return b.moveMark(ctx, k, m, m.id()+retainedSuffix)
}

// unmarked is for a path without a mark: only a retained directory may be there.
func (b *base) unmarked(k *book, p string, owner Owner, atLeast OnDelete) error {
	if atLeast == Retain {
		return nil
	}
	if m, err := readMark(k.trash, stagingID(p, owner)+retainedSuffix, p); err != nil || m != nil {
		return err
	}
	b.missing.Store(true)
	dir, err := b.openParent(p)
	if err != nil || dir == nil {
		return err
	}
	defer b.close(dir)
	return b.isFree(k, dir, p)
}

// openParent opens the directory above a path; nil: there is none.
func (b *base) openParent(p string) (*os.File, error) {
	dir := b.root
	elements := strings.Split(p, "/")
	for _, name := range elements[:len(elements)-1] {
		next, err := b.kernel.openDir(dir, name, unix.O_PATH)
		b.close(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		dir = next
	}
	return dir, nil
}

// find opens the directory above a mark's, if the mark's is there; dir is nil
// if it is gone.
func (b *base) find(m *mark) (dir *os.File, err error) {
	dir, err = b.openParent(m.Path)
	if err != nil || dir == nil {
		return nil, err
	}
	here, err := b.kernel.look(dir, path.Base(m.Path))
	if err == nil && here.same(m.Directory) {
		return dir, nil
	}
	b.close(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err == nil:
		return nil, &Error{Cause: ErrReplaced, Path: b.name(m.Path), Owner: m.Owner}
	}
	return nil, err
}

// delete moves a directory to the trash, then its mark, and empties the trash.
func (b *base) delete(ctx context.Context, k *book, m *mark) error {
	dir, err := b.find(m)
	if dir != nil {
		defer b.close(dir)
		err := b.moveOut(ctx, m, dir, k.trash, m.id())
		if isTaken(err) {
			_, err = b.thrown(k, m)
			return changed(err) // another process deletes it too
		}
		if err != nil {
			return err
		}
	} else {
		// Only now: it may be moved there at any time, but never back.
		switch thrown, missing := b.thrown(k, m); {
		case missing != nil:
			return missing
		case thrown:
		case err != nil:
			return err
		default:
			name, err := b.inTrash(k, m)
			if err != nil {
				return err
			}
			if name != "" {
				return b.fetch(ctx, k, name, k.trash, m.id())
			}
			return b.gone(ctx, k, m)
		}
	}
	if err := b.moveMark(ctx, k, m, m.id()+markSuffix); err != nil {
		return err
	}
	return b.emptyTrash(ctx, k, m.Path, m.Owner, Delete)
}

// thrown reports whether the directory of a mark is in the trash already.
func (b *base) thrown(k *book, m *mark) (bool, error) {
	there, err := b.kernel.look(k.trash, m.id())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err == nil && !there.same(m.Directory):
		err = &Error{Cause: ErrReplaced, Path: path.Join(k.trash.Name(), m.id()), Owner: m.Owner}
	}
	return err == nil, err
}

// gone is for a mark without a directory; a staged one was never used.
func (b *base) gone(ctx context.Context, k *book, m *mark) error {
	b.missing.Store(true)
	if err := b.dropMark(ctx, k, m); err != nil {
		return err
	}
	return b.dropStaged(ctx, k, m)
}

// archive renames a directory so that its name shows that it was deleted.
func (b *base) archive(ctx context.Context, k *book, m *mark) error {
	dir, err := b.find(m)
	if dir == nil {
		if err := b.bringBack(ctx, k, m); err != nil {
			return err
		}
		if err != nil {
			return err
		}
		return b.gone(ctx, k, m)
	}
	defer b.close(dir)
	name := archivePrefix + path.Base(m.Path)
	for _, name := range []string{name, name + "-" + m.Volume, archivePrefix + m.id(), archivePrefix + digest(m.id(), m.Directory.key())} {
		err = b.moveOut(ctx, m, dir, dir, name)
		if !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ENAMETOOLONG) {
			break
		}
	}
	if err != nil {
		return err
	}
	return b.dropMark(ctx, k, m)
}

// moveOut moves the directory of a mark, and looks again whether it was that one:
// another one in its place is moved back.
func (b *base) moveOut(ctx context.Context, m *mark, dir, to *os.File, newName string) error {
	name := path.Base(m.Path)
	err := b.do(ctx, "move out", func() error {
		err := b.kernel.rename(dir, name, to, newName)
		if errors.Is(err, unix.EACCES) && b.unlock(dir, name, m) == nil {
			err = b.kernel.rename(dir, name, to, newName)
		}
		return err
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) {
		return errChanged
	}
	if err != nil {
		return err
	}
	moved, err := b.kernel.look(to, newName)
	if isGone(err) {
		return errChanged
	}
	if err != nil {
		return err
	}
	if !moved.same(m.Directory) {
		return errors.Join(&Error{Cause: ErrReplaced, Path: b.name(m.Path), Owner: m.Owner}, b.kernel.rename(to, newName, dir, name))
	}
	return errors.Join(syncDir(to), syncDir(dir))
}

// unlock lets its owner write in the directory of a mark, which he must to move
// it elsewhere. The volume's users may have forbidden it, where they are its
// owner too (root_squash).
func (b *base) unlock(dir *os.File, name string, m *mark) error {
	f, err := b.kernel.openDir(dir, name, unix.O_PATH)
	if err != nil {
		return err
	}
	defer f.Close()
	if id, err := identify(int(f.Fd())); err != nil || !id.same(m.Directory) {
		return changed(err)
	}
	st, err := stat(f)
	if err != nil {
		return err
	}
	// fchmod(2) knows no O_PATH, and without the mode it could not be opened otherwise.
	return eintr.Do(func() error { return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), st.Mode&0o7777|0o700) })
}

// emptyTrash deletes the directory that was moved there for this owner and path,
// or moves it back if it is to be kept by now.
func (b *base) emptyTrash(ctx context.Context, k *book, p string, owner Owner, atLeast OnDelete) error {
	id := stagingID(p, owner)
	m, err := readMark(k.trash, id+markSuffix, p)
	if err != nil || m == nil {
		return err
	}
	if m.Owner != owner { // moved here too late, by a process that died
		return &Error{Cause: ErrReplaced, Path: path.Join(k.trash.Name(), id), Owner: owner}
	}
	thrown, err := b.kernel.look(k.trash, id)
	switch {
	case err == nil && !thrown.same(m.Directory):
		return &Error{Cause: ErrReplaced, Path: path.Join(k.trash.Name(), id), Owner: owner}
	case errors.Is(err, fs.ErrNotExist):
		return b.forget(ctx, k, id)
	case err != nil:
		return err
	case m.OnDelete.stricter(atLeast) != Delete:
		return b.reinstate(ctx, k, m)
	}
	b.emptied.Store(true)
	err = b.do(ctx, "delete", func() error { return removetree.RemoveAt(ctx, k.trash, id) })
	if errors.Is(err, fs.ErrNotExist) {
		return errChanged // another process deletes it too
	}
	if err != nil {
		return err
	}
	return b.forget(ctx, k, id)
}

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
