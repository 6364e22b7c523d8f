package wipe

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/removetree"
)

// Empty deletes everything in root, hidden files too, but not root, whose mode
// and owner stay. It returns nil only after it has read root and found nothing.
// Root may have been opened with O_PATH.
//
// The error is an *[reclaim.IncompleteError]: a *[removetree.MountError] if something
// is mounted below root, which is left alone, a *[removetree.OpenError] for a file
// that NFS keeps while it is open, the cause of ctx's end, [ErrNoLonger], or a *[io/fs.PathError]. ctx is looked at between system calls.
func Empty(ctx context.Context, root *os.File, options Options) error {
	m := newMeter(options)
	mayGoOn := func() error { return m.mayGoOn(ctx) }
	if options.Keep == "" {
		return m.result(removetree.EmptyAt(ctx, root, mayGoOn, m.step))
	}
	kept, err := openKept(root, options.Keep)
	if err != nil {
		return m.result(err)
	}
	if kept == nil {
		return m.result(removetree.EmptyAt(ctx, root, mayGoOn, m.step))
	}
	defer kept.Close()
	if err := removetree.EmptyAt(ctx, kept, mayGoOn, m.step); err != nil {
		return m.result(err)
	}
	return m.result(removetree.EmptyAllBut(ctx, root, options.Keep, mayGoOn, m.step))
}

// openKept opens the directory that stays; it is nil if there is none. A mount
// there is a *[removetree.MountError].
func openKept(root *os.File, name string) (*os.File, error) {
	path := root.Name() + "/" + name
	fd, err := eintr.Get(func() (int, error) {
		return unix.Openat2(int(root.Fd()), name, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
		})
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, nil
	case errors.Is(err, unix.EXDEV):
		return nil, &removetree.MountError{Path: path}
	case err != nil:
		return nil, &fs.PathError{Op: "openat2", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
