package wipe

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/treewalk"
)

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
