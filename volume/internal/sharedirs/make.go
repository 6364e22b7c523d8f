package sharedirs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// Request is a directory that is to be made.
type Request struct {
	// Path is below the base, as [CheckPath] wants it.
	Path  string
	Owner Owner
	// Claim is the claim's namespace and name; it is noted for people.
	Claim string
	// Records names the records that have the PersistentVolume, for [Former].
	Records string
	// Mode are the permission bits, setgid and sticky included, that it gets
	// whatever the umask. The owner must have all three of his.
	Mode uint32
	// OnDelete is noted for [Remove].
	OnDelete OnDelete
	// On is where root lies.
	On Medium
}

// Make makes a directory below root for a volume, or finds the one that it has
// made for it before, and leaves that as it is. After a failure or a crash
// another call goes on. Of several calls at the same time, also on other nodes,
// one gets a path.
//
// Errors are [CheckPath]'s, before anything is touched, *[Error]s and the cause
// of ctx's end. Existing files are left alone.
func Make(ctx context.Context, root *os.File, w Request) error {
	return w.On.named(newBase(root).make(ctx, w))
}

func (b *base) make(ctx context.Context, w Request) error {
	if err := CheckPath(w.Path); err != nil {
		return err
	}
	k, err := b.openBook(ctx, true)
	if err != nil {
		return err
	}
	defer k.close()
	return repeat(b.name(w.Path), func() error { return b.tryMake(ctx, k, w) })
}

func (b *base) tryMake(ctx context.Context, k *book, w Request) error {
	dir, err := b.makeParents(ctx, k, w.Path)
	if err != nil {
		return err
	}
	defer b.close(dir)
	m := &mark{Version: markVersion, Path: w.Path, Owner: w.Owner, Claim: w.Claim, Records: w.Records, OnDelete: w.OnDelete}
	return b.ensure(ctx, k, dir, m, w.Mode)
}

// ensure makes the directory of a mark that is still to be written, if it has
// not been made yet.
func (b *base) ensure(ctx context.Context, k *book, dir *os.File, want *mark, mode uint32) error {
	have, err := readMark(k.marks, keyOf(want.Path), want.Path)
	if err != nil {
		return err
	}
	if have == nil {
		if err := b.isFree(k, dir, want.Path); err != nil {
			return b.unlessMarked(k, want.Path, nil, b.unlessRetained(k, dir, want, err))
		}
		if have, err = b.claim(ctx, k, want, mode); err != nil {
			return err
		}
	}
	if have.Owner != want.Owner {
		return b.ownedBy(have)
	}
	return b.place(ctx, k, dir, have)
}

func (b *base) ownedBy(m *mark) error {
	return &Error{Cause: ErrOccupied, Path: b.name(m.Path), Owner: m.Owner, Reason: "made for claim " + m.Claim}
}

// name is how errors call a path.
func (b *base) name(p string) string { return path.Join(b.root.Name(), p) }

// isFree refuses a path at which something is, whatever it is.
func (b *base) isFree(k *book, dir *os.File, p string) error {
	id, err := b.kernel.look(dir, path.Base(p))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if k != nil {
		if parent, err := b.isParent(k, p, id); err != nil {
			return err
		} else if parent {
			return &Error{Cause: ErrNested, Path: b.name(p)}
		}
	}
	return &Error{Cause: ErrOccupied, Path: b.name(p), Reason: "it exists, and has no mark of podvol's"}
}

// unlessRetained says whether the directory at a path was this volume's before.
func (b *base) unlessRetained(k *book, dir *os.File, want *mark, err error) error {
	m, failure := readMark(k.trash, want.id()+retainedSuffix, want.Path)
	if failure != nil || m == nil || m.Owner != want.Owner {
		return err
	}
	if here, failure := b.kernel.look(dir, path.Base(want.Path)); failure != nil || !here.same(m.Directory) {
		return err
	}
	return &Error{Cause: ErrRetained, Path: b.name(want.Path), Owner: m.Owner}
}

// claim stages a directory, and writes the mark that tells whose it is.
func (b *base) claim(ctx context.Context, k *book, want *mark, mode uint32) (*mark, error) {
	id, err := b.stage(ctx, k, want.id(), want.Path, mode)
	if err != nil {
		return nil, err
	}
	m := *want
	m.Directory = id
	err = b.do(ctx, "write mark", func() error { return writeMark(k.marks, &m) })
	if errors.Is(err, fs.ErrExist) {
		return nil, changed(b.unstage(ctx, k, want))
	}
	if err != nil {
		return nil, err
	}
	return &m, nil
}

// stage makes a directory without a path.
func (b *base) stage(ctx context.Context, k *book, name, p string, mode uint32) (identity, error) {
	err := b.do(ctx, "stage", func() error { return mkdir(k.staging, name, 0o700) })
	if err != nil && !errors.Is(err, fs.ErrExist) { // a crash has left it, or another process does the same
		return identity{}, err
	}
	dir, err := b.kernel.openDir(k.staging, name, unix.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return identity{}, errChanged
	}
	if err != nil {
		return identity{}, err
	}
	defer dir.Close()
	if err := b.do(ctx, "chmod", func() error { return setMode(dir, b.name(p), mode) }); err != nil {
		return identity{}, err
	}
	if err := errors.Join(syncDir(dir), syncDir(k.staging)); err != nil {
		return identity{}, err
	}
	id, err := identify(int(dir.Fd()))
	return id, failed("statx", dir.Name(), err)
}

// unstage removes the directory that was staged for a path that another volume
// has got. Another call for the same volume may need it.
func (b *base) unstage(ctx context.Context, k *book, want *mark) error {
	have, err := readMark(k.marks, keyOf(want.Path), want.Path)
	if err != nil || have == nil || have.Owner == want.Owner {
		return err
	}
	return b.dropStaged(ctx, k, want)
}

func (b *base) dropStaged(ctx context.Context, k *book, m *mark) error {
	return b.do(ctx, "unstage", func() error { return rmdirIfThere(k.staging, m.id()) })
}

// setMode gives a directory a mode, and sees whether it has it.
func setMode(dir *os.File, p string, mode uint32) error {
	if err := eintr.Do(func() error { return unix.Fchmod(int(dir.Fd()), mode) }); err != nil {
		return failed("chmod", p, err)
	}
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Fstat(int(dir.Fd()), &st) }); err != nil {
		return failed("stat", p, err)
	}
	if got := st.Mode & 0o7777; got != mode {
		return &Error{Cause: ErrMode, Path: p, Reason: fmt.Sprintf("has the mode %#o instead of %#o", got, mode)}
	}
	return nil
}

// place moves the staged directory of a mark to its path, if it is not there.
func (b *base) place(ctx context.Context, k *book, dir *os.File, m *mark) error {
	here, err := b.kernel.look(dir, path.Base(m.Path))
	if err == nil && here.same(m.Directory) {
		return b.dropStaged(ctx, k, m)
	}
	free := errors.Is(err, fs.ErrNotExist)
	staged, missing := b.kernel.look(k.staging, m.id())
	if missing != nil && !errors.Is(missing, fs.ErrNotExist) {
		return missing
	}
	waits := missing == nil && staged.same(m.Directory)
	occupied := err == nil || errors.Is(err, ErrOccupied)
	switch {
	case free && waits:
		return b.moveIn(ctx, k, dir, m)
	case free:
		return b.lost(ctx, k, dir, m)
	case occupied && waits:
		return b.withdraw(ctx, k, dir, m)
	case err == nil:
		err = &Error{Cause: ErrReplaced, Path: b.name(m.Path), Owner: m.Owner}
	}
	return b.unlessMarked(k, m.Path, m, err)
}

// unlessMarked is errChanged if the path has another mark by now than it had,
// and else what was found out with that one.
func (b *base) unlessMarked(k *book, p string, had *mark, err error) error {
	now, failure := readMark(k.marks, keyOf(p), p)
	switch {
	case failure != nil:
		return failure
	case (now == nil) != (had == nil) || now != nil && (now.Owner != had.Owner || now.Directory != had.Directory):
		return errChanged
	}
	return err
}

func (b *base) moveIn(ctx context.Context, k *book, dir *os.File, m *mark) error {
	name := path.Base(m.Path)
	err := b.do(ctx, "place", func() error { return b.kernel.rename(k.staging, m.id(), dir, name) })
	if isTaken(err) || isGone(err) {
		return errChanged
	}
	if err != nil {
		return err
	}
	if err := errors.Join(syncDir(dir), syncDir(k.staging)); err != nil {
		return err
	}
	here, err := b.kernel.look(dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errChanged // removed again
	case err == nil && !here.same(m.Directory):
		err = b.unlessMarked(k, m.Path, m, &Error{Cause: ErrReplaced, Path: b.name(m.Path), Owner: m.Owner})
	}
	return err
}

// lost is for a directory that is neither at its path nor staged.
func (b *base) lost(ctx context.Context, k *book, dir *os.File, m *mark) error {
	if here, err := b.kernel.look(dir, path.Base(m.Path)); err == nil && here.same(m.Directory) {
		return errChanged // another process has just placed it
	}
	switch name, err := b.inTrash(k, m); {
	case err != nil:
		return err
	case name == m.id():
		return b.unlessMarked(k, m.Path, m, b.trashed(k, m, name, nil))
	case name != "":
		return b.fetch(ctx, k, name, dir, path.Base(m.Path))
	}
	return b.unlessMarked(k, m.Path, m, &Error{Cause: ErrLost, Path: b.name(m.Path), Owner: m.Owner})
}

// withdraw gives a path up that something else has taken before our directory
// was there.
func (b *base) withdraw(ctx context.Context, k *book, dir *os.File, m *mark) error {
	err := b.isFree(k, dir, m.Path)
	if err == nil {
		return errChanged
	}
	if err := b.dropMark(ctx, k, m); err != nil {
		return err
	}
	if err := b.dropStaged(ctx, k, m); err != nil {
		return err
	}
	return err
}
