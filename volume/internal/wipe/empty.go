package wipe

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/util/treewalk"
)

// Empty deletes everything in root, hidden files too, but not root, whose mode
// and owner stay. It returns nil only after it has read root and found nothing.
// Root may have been opened with O_PATH.
//
// The error is an *[reclaim.IncompleteError]: a *[removetree.MountError] if something
// is mounted below root, which is left alone, a *[removetree.OpenError] for a file
// that NFS keeps while it is open, the cause of ctx's end, [ErrNoLonger], or a *[io/fs.PathError]. ctx is checked between system calls.
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

// FindDir looks for a directory below root by its name alone, at any depth, and
// returns the path of the first that it finds, which begins with root's name; it
// is empty if there is none. Links and mounts are not followed, and nothing is
// changed. The error is a *[io/fs.PathError], where a directory cannot be read for
// example, or the cause of ctx's end.
func FindDir(ctx context.Context, root *os.File, wanted func(name string) bool) (path string, err error) {
	tree, err := treewalk.OpenAt(root, treewalk.Options{})
	if err != nil {
		return "", err
	}
	defer tree.Close()
	err = tree.Walk(ctx, 1, func() treewalk.Visitor { return &finder{tree, wanted} })
	if errors.Is(err, errFound) {
		found, _ := errors.AsType[*fs.PathError](err)
		return found.Path, nil
	}
	return "", err
}

// errFound ends the walk of a [finder], which adds the path.
var errFound = errors.New("found")

type finder struct {
	tree   *treewalk.Tree
	wanted func(name string) bool
}

func (f *finder) Visit(dirfd int, name treewalk.Name, kind uint8) (enter bool, err error) {
	if kind == unix.DT_UNKNOWN {
		info, err := f.tree.Stat(dirfd, name)
		switch {
		case errors.Is(err, unix.ENOENT):
			return false, nil
		case err != nil:
			return false, &fs.PathError{Op: "statx", Err: err}
		case info.IsDir():
			kind = unix.DT_DIR
		}
	}
	switch {
	case kind != unix.DT_DIR:
		return false, nil
	case f.wanted(name.String()):
		return false, &fs.PathError{Op: "find", Err: errFound}
	}
	return true, nil
}

func (f *finder) Enter(int, treewalk.Info) error { return nil }

// maxFirst is how many names a [Contents] has.
const maxFirst = 10

// Contents is what an emptying would delete.
type Contents struct {
	// Entries is the number of files, links and directories; Bytes the space
	// they take, where a file of several names counts for each.
	Entries, Bytes int64
	// First are the first names directly in the directory, ten at most, in the
	// order in which the file system lists them.
	First []string
	// Mounts is how many mount points there are. They and their content are not
	// counted, and would not be deleted.
	Mounts int64
}

// Survey counts what [Empty] would delete, and changes nothing. Beside an
// error, a *[io/fs.PathError] or the cause of ctx's end, it returns what it has
// seen until then.
func Survey(ctx context.Context, root *os.File) (Contents, error) {
	tree, err := treewalk.OpenAt(root, treewalk.Options{})
	if err != nil {
		return Contents{}, err
	}
	defer tree.Close()
	rootFD, _ := tree.Root()
	v := &surveyor{tree: tree, root: rootFD}
	err = tree.Walk(ctx, 1, func() treewalk.Visitor { return v })
	return v.found, err
}

// surveyor is the only visitor of its walk.
type surveyor struct {
	tree  *treewalk.Tree
	root  int
	found Contents
}

func (s *surveyor) Visit(dirfd int, name treewalk.Name, _ uint8) (enter bool, err error) {
	info, err := s.tree.Stat(dirfd, name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, &os.PathError{Op: "statx", Err: err}
	case !s.tree.Holds(info):
		s.found.Mounts++
		return false, nil
	}
	s.found.Entries++
	s.found.Bytes += int64(info.Blocks) * 512
	if dirfd == s.root && len(s.found.First) < maxFirst {
		s.found.First = append(s.found.First, name.String())
	}
	return info.IsDir(), nil
}

func (s *surveyor) Enter(int, treewalk.Info) error { return nil }
