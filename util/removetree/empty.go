package removetree

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/openat"
)

// EmptyAt removes everything in an open directory, as [RemoveAt] would, but not
// the directory itself, whose mode and owner stay. Before each removal it asks
// mayGoOn, whose error ends it and is returned; after each it calls removed.
// Both may be nil. It returns nil once it has read the directory and found
// nothing there. Its position is not used, and it may have been opened with
// O_PATH.
func EmptyAt(ctx context.Context, dir *os.File, mayGoOn func() error, removed func()) error {
	return emptyAt(ctx, dir, mayGoOn, removed, kernel{openat2: true, mountID: true})
}

// EmptyAllBut is [EmptyAt] that leaves one name in the directory alone, whatever
// it is and whatever is in it.
func EmptyAllBut(ctx context.Context, dir *os.File, kept string, mayGoOn func() error, removed func()) error {
	return emptyAllBut(ctx, dir, kept, mayGoOn, removed, kernel{openat2: true, mountID: true})
}

func emptyAt(ctx context.Context, dir *os.File, mayGoOn func() error, removed func(), k kernel) error {
	return emptyAllBut(ctx, dir, "", mayGoOn, removed, k)
}

func emptyAllBut(ctx context.Context, dir *os.File, kept string, mayGoOn func() error, removed func(), k kernel) error {
	top, err := openat.Dir(dir, ".")
	if err != nil {
		return err
	}
	defer top.Close()
	fd := int(top.Fd())
	id, err := k.identify(fd)
	if err != nil {
		return &fs.PathError{Op: "statx", Path: dir.Name(), Err: err}
	}
	w := &walk{
		kernel:  k,
		mayGoOn: mayGoOn,
		removed: removed,
		kept:    kept,
		stack:   []frame{{name: dir.Name(), fd: fd, id: id}},
	}
	defer w.close()
	for range maxRetries {
		found, err := w.emptyRoot(ctx)
		if err != nil || found == 0 {
			return err
		}
	}
	return w.failed("remove", "", errors.New("the directory keeps being filled while it is being emptied"))
}

// emptyRoot removes what it finds in the only directory of the stack, and
// returns how much that was. A file system may leave entries out while others
// are being removed, so only a reading that finds nothing is the end.
func (w *walk) emptyRoot(ctx context.Context) (found int, err error) {
	if _, err := unix.Seek(w.top().fd, 0, unix.SEEK_SET); err != nil {
		return 0, w.failed("lseek", "", err)
	}
	if found, err = w.empty(ctx); err != nil {
		return found, err
	}
	return found, w.run(ctx)
}
