package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/sharedirs"
)

// noBase says that the directory in which volumes are to be made or deleted cannot
// be used.
func noBase(path string, err error) error {
	next := "it must be a directory of this node"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		next = "look whether its disk is mounted on this node, or create it"
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		next = "it must be a directory; below a base links are not followed"
	}
	what := fmt.Sprintf("the directory %s for provisioned volumes cannot be opened: %v", path, err)
	return &volume.Failure{Cause: ErrNoBase, Subject: path, What: what, Next: next, Err: err}
}

// openClassDir opens the directory that a class's volumes lie in. The base's own
// path is the administrator's; below it no links are followed, and a volume of
// another class is refused. Missing bases are made if create says so too.
func (p *plugin) openClassDir(ctx context.Context, base Base, dir string, create bool) (*os.File, error) {
	path := filepath.Clean(base.Path)
	at, err := os.OpenFile(path, unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) && base.Make && create {
		if err := p.files.MakeDir(ctx, path, 0o700); err != nil {
			return nil, fmt.Errorf("making the directory %s for provisioned volumes: %w", path, err)
		}
		at, err = os.OpenFile(path, unix.O_DIRECTORY, 0)
	}
	if err != nil {
		return nil, noBase(path, reason(err))
	}
	rest, _ := pathin.Cut(path, dir)
	for rest != "" {
		if err := sharedirs.CheckOutside(ctx, at, rest, sharedirs.Disk); err != nil {
			at.Close()
			return nil, err
		}
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		next, err := openBelow(at, name)
		at.Close()
		if err != nil {
			return nil, err
		}
		at = next
	}
	return at, nil
}

func openBelow(dir *os.File, name string) (*os.File, error) {
	path := filepath.Join(dir.Name(), name)
	fd, err := eintr.Get(func() (int, error) {
		return unix.Openat(int(dir.Fd()), name, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, noBase(path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// reason is an error without the path that says the same again.
func reason(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}
