package containermounts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/util/subpath"
	"github.com/podvol/podvol/volume"
)

// noMountPoint says that a volume is to be mounted inside another one which is
// read-only and has no such mount point. It matches [fs.ErrNotExist].
func noMountPoint(outer, point, destination string) error {
	return &volume.Failure{
		Cause: fs.ErrNotExist, Subject: destination,
		What: fmt.Sprintf("it is to be mounted at %s, which is %q in volume %q; that is read-only and has no such mount point", destination, point, outer),
		Next: "make it there beforehand, or mount one of the two elsewhere",
	}
}

// makeNestedPoints makes the mount points of those that lie inside other
// volumes. A runtime would make them itself, but not through a mount that is
// read-only in the container. The mounts are in order, and have their sources.
func (c *container) makeNestedPoints(ctx context.Context, mounts []*planned) error {
	var errs []error
	for i, inner := range mounts {
		outer, point := enclosing(mounts[:i], inner)
		if outer == nil {
			continue
		}
		if err := c.makeNestedPoint(ctx, outer, inner, point); err != nil {
			errs = append(errs, inner.volume.failed(err))
		}
	}
	return errors.Join(errs...)
}

// enclosing is the innermost of the mounts that a destination lies in, if there
// is one.
func enclosing(mounts []*planned, inner *planned) (outer *planned, point string) {
	for _, m := range mounts {
		if rest, ok := pathin.Cut(m.Destination, inner.Destination); ok && (outer == nil || len(m.Destination) > len(outer.Destination)) {
			outer, point = m, rest
		}
	}
	return outer, point
}

func (c *container) makeNestedPoint(ctx context.Context, outer, inner *planned, point string) error {
	if outer.File {
		return volume.Invalid(c.mountField(inner.index)+".mountPath", "%s lies in %s, where volume %q shows a file", inner.Destination, outer.Destination, outer.Volume)
	}
	readOnly := outer.volume.readOnly() || outer.fixed
	err := c.places.reach(ctx, outer.Source+"\x00"+point, func() error {
		root, err := c.places.openSource(outer)
		if err != nil {
			return err
		}
		defer root.Close()
		if readOnly {
			return checkPoint(root, point, !inner.File)
		}
		return subpath.MakePoint(ctx, root, point, !inner.File)
	})
	if errors.Is(err, fs.ErrNotExist) && (readOnly || isReadOnly(err)) {
		return volume.NothingDone(noMountPoint(outer.Volume, point, inner.Destination))
	}
	if err != nil {
		return fmt.Errorf("the mount point %s in volume %q cannot be made: %w", inner.Destination, outer.Volume, err)
	}
	return nil
}

func isReadOnly(err error) bool {
	_, ok := errors.AsType[*subpath.ReadOnlyError](err)
	return ok
}

// checkPoint looks for a mount point where none can be made.
func checkPoint(root *os.File, point string, dir bool) error {
	file, err := subpath.Open(root, point)
	if err != nil {
		return err
	}
	defer file.Close()
	is, err := identify(file)
	if err == nil && is.dir != dir {
		err = &subpath.KindError{Volume: root.Name(), Path: point, Dir: dir}
	}
	return err
}
