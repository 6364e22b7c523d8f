package sharedirs

import (
	"context"
	"errors"
	"os"
)

// Former is a directory that was made for a claim, as its mark says.
type Former struct {
	// Path is below the base.
	Path string
	// Claim is the claim's namespace and name.
	Claim string
	Owner Owner
	// Records is [Wish].Records, empty where it was not given.
	Records string

	directory identity
}

// Formers returns the directories that were made below root, by the claim's
// namespace and name. Marks that cannot be used are left out: the volumes that
// they are about say so. Errors are as in [Make]. It changes nothing.
func Formers(ctx context.Context, root *os.File) (map[string][]Former, error) {
	formers, err := newBase(root).formers(ctx)
	return formers, Disk.named(err)
}

func (b *base) formers(ctx context.Context) (map[string][]Former, error) {
	k, err := b.openBook(ctx, false)
	if err != nil || k == nil {
		return nil, err
	}
	defer k.close()
	names, err := list(k.marks)
	if err != nil {
		return nil, err
	}
	formers := make(map[string][]Former)
	for _, name := range names {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var m mark
		found, err := readJSON(k.marks, name, &m)
		if errors.As(err, new(*jsonError)) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if found && m.Version == markVersion && name == keyOf(m.Path) && CheckPath(m.Path) == nil {
			formers[m.Claim] = append(formers[m.Claim], Former{Path: m.Path, Claim: m.Claim, Owner: m.Owner, Records: m.Records, directory: m.Directory})
		}
	}
	return formers, nil
}

// Remains reports whether the directory is where it was made, with its mark.
// Another directory in its place does not count. Errors are as in [Make].
func (f Former) Remains(ctx context.Context, root *os.File) (bool, error) {
	remains, err := newBase(root).remains(ctx, f)
	return remains, Disk.named(err)
}

func (b *base) remains(ctx context.Context, f Former) (bool, error) {
	k, err := b.openBook(ctx, false)
	if err != nil || k == nil {
		return false, err
	}
	defer k.close()
	m, err := readMark(k.marks, keyOf(f.Path), f.Path)
	if err != nil || m == nil || m.Owner != f.Owner || m.Directory != f.directory {
		return false, err
	}
	dir, err := b.find(m)
	if errors.Is(err, ErrReplaced) || errors.Is(err, ErrOccupied) {
		return false, nil
	}
	if dir != nil {
		b.close(dir)
	}
	return dir != nil, err
}
