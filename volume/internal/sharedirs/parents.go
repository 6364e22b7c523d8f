package sharedirs

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
)

// parentMode is the mode of directories above volumes: pods' users must be able
// to pass.
const parentMode = 0o755

// parent is a directory above volumes that was made for them. Its record is named
// by path and inode, so that its removal never hits another directory's record.
// It is written after the directory was made, since on NFS only mkdir(2) never
// replaces anything: a crash in between leaves an empty directory that no volume
// has, and that stays.
type parent struct {
	Version   int      `json:"version"`
	Path      string   `json:"path"`
	Directory identity `json:"directory"`
}

func recordOf(p string, id identity) string {
	return digest(p) + "-" + digest(id.key()) + markSuffix
}

// above lists the paths above p, from the outermost.
func above(p string) (paths []string) {
	for i, r := range p {
		if r == '/' {
			paths = append(paths, p[:i])
		}
	}
	return paths
}

// makeParents returns the directory above a volume's path. It makes and records
// missing ones, and refuses a path in another volume. It looks at marks only once
// the directory is open: a volume that takes its path afterwards replaces an
// empty directory at most.
func (b *base) makeParents(ctx context.Context, k *book, below string) (*os.File, error) {
	dir := b.root
	for _, p := range above(below) {
		next, err := b.kernel.openDir(dir, path.Base(p), unix.O_PATH)
		if errors.Is(err, fs.ErrNotExist) {
			err = changed(b.makeParent(ctx, k, dir, p, below))
		}
		b.close(dir)
		if err != nil {
			return nil, err
		}
		dir = next
		if err := b.notIn(k, p, below); err != nil {
			b.close(dir)
			return nil, err
		}
	}
	return dir, nil
}

// close closes a directory that is not the root, which is the caller's.
func (b *base) close(dir *os.File) {
	if dir != b.root {
		dir.Close()
	}
}

// notIn refuses a path below p if p is a volume.
func (b *base) notIn(k *book, p, below string) error {
	m, err := readMark(k.marks, keyOf(p), p)
	if err != nil || m == nil {
		return err
	}
	return &Error{Cause: ErrNested, Path: b.name(below), Other: b.name(p), Owner: m.Owner}
}

// makeParent makes one directory above a volume, unless it is there.
func (b *base) makeParent(ctx context.Context, k *book, dir *os.File, p, below string) error {
	if err := b.notIn(k, p, below); err != nil {
		return err
	}
	err := b.do(ctx, "make parent", func() error { return mkdir(dir, path.Base(p), parentMode) })
	if isTaken(err) || isGone(err) {
		return nil // it will be checked again
	}
	if err != nil {
		return err
	}
	made, err := b.kernel.openDir(dir, path.Base(p), unix.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer made.Close()
	if as, err := asMade(k, made); err != nil || !as {
		return err // another user's, and kept as it is
	}
	id, err := identify(int(made.Fd()))
	if err != nil {
		return failed("statx", made.Name(), err)
	}
	data, err := json.Marshal(parent{Version: markVersion, Path: p, Directory: id})
	if err != nil {
		return err
	}
	record := recordOf(p, id)
	err = b.do(ctx, "record parent", func() error {
		return failed("mark", filepath.Join(k.parents.Name(), record), durable.CreateAt(k.parents, record, append(data, '\n'), 0o600))
	})
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(b.open(made, p), syncDir(dir))
}

// asMade reports whether a directory may be the one that was just made at its
// name: ours, and open to no further user.
func asMade(k *book, made *os.File) (bool, error) {
	own, err := stat(k.parents)
	if err != nil {
		return false, err
	}
	st, err := stat(made)
	return st.Uid == own.Uid && st.Mode&0o7777&^(parentMode|unix.S_ISGID) == 0, err
}

// open gives a new parent its mode where the umask or an ACL has taken some of
// it. A directory with entries is not new, or another node has been as fast.
func (b *base) open(made *os.File, p string) error {
	st, err := stat(made)
	if err != nil || st.Mode&0o7777 == parentMode {
		return err
	}
	if names, err := list(made); err != nil || len(names) > 0 {
		return err
	}
	return setMode(made, b.name(p), parentMode)
}

func (b *base) dropRecord(ctx context.Context, k *book, record string) error {
	return b.do(ctx, "drop record", func() error {
		return failed("remove", filepath.Join(k.parents.Name(), record), durable.RemoveAt(k.parents, record))
	})
}

// isParent reports whether the directory at p was made for volumes below it.
func (b *base) isParent(k *book, p string, id identity) (bool, error) {
	fd, err := openat(k.parents, recordOf(p, id), unix.O_PATH|unix.O_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, failed("open", filepath.Join(k.parents.Name(), recordOf(p, id)), err)
	}
	return true, unix.Close(fd)
}

// prune removes the directories above a volume that were made for volumes and are
// empty, from the innermost. A directory in use stays.
func (b *base) prune(ctx context.Context, k *book, p string) error {
	paths := above(p)
	for i := len(paths) - 1; i >= 0; i-- {
		if full, err := b.pruneOne(ctx, k, paths[i]); err != nil || full {
			return err
		}
	}
	return nil
}

func (b *base) pruneOne(ctx context.Context, k *book, p string) (full bool, err error) {
	dir, err := b.openParent(p)
	if errors.Is(err, ErrOccupied) {
		return true, nil // no longer ours
	}
	if err != nil {
		return false, err
	}
	if dir == nil {
		return false, b.dropRecords(ctx, k, p)
	}
	defer b.close(dir)
	id, err := b.kernel.look(dir, path.Base(p))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, b.dropRecords(ctx, k, p)
	case errors.Is(err, ErrOccupied):
		return true, nil
	case err != nil:
		return false, err
	}
	if ours, err := b.isParent(k, p, id); err != nil || !ours {
		return !ours, err
	}
	err = b.do(ctx, "remove parent", func() error { return rmdir(dir, path.Base(p)) })
	switch {
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST), errors.Is(err, fs.ErrNotExist):
		return true, nil
	case err != nil:
		return false, err
	}
	return false, b.dropRecords(ctx, k, p)
}

// dropRecords drops the records of directories that were at p and no longer
// are: those are gone for good.
func (b *base) dropRecords(ctx context.Context, k *book, p string) error {
	names, err := list(k.parents)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, digest(p)+"-") {
			continue
		}
		var record parent
		if found, err := readJSON(k.parents, name, &record); err != nil || !found || record.Path != p {
			continue // of a later version, or already gone
		}
		dir, err := b.openParent(p)
		if err != nil {
			return err
		}
		if dir != nil {
			id, err := b.kernel.look(dir, path.Base(p))
			b.close(dir)
			switch {
			case err == nil && id.same(record.Directory), errors.Is(err, ErrOccupied):
				continue // a mount, or another file, may hide it
			case err != nil && !errors.Is(err, fs.ErrNotExist):
				return err
			}
		}
		if err := b.dropRecord(ctx, k, name); err != nil {
			return err
		}
	}
	return nil
}

func list(dir *os.File) ([]string, error) {
	fd, err := openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, failed("open", dir.Name(), err)
	}
	f := os.NewFile(uintptr(fd), dir.Name())
	defer f.Close()
	names, err := f.Readdirnames(-1)
	return names, failed("list", dir.Name(), err)
}
