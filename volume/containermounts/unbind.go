//go:build linux

package containermounts

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/lazyunmount"
)

// These are how long a bound sub-path may stay busy before its server's requests
// are cut off, and before it is detached.
const (
	subPathForceAfter = 30 * time.Second
	subPathLazyAfter  = time.Minute
)

// Bound lists the mounts below the directory of sub-paths, deepest first, from
// the mount table: whichever process bound them, and however that ended. It
// matches [fs.ErrNotExist] where there is no such directory.
func (b *Binder) Bound(parts SubPaths) ([]mount.Entry, error) {
	mounts := table.Of(b.host.Mounter)
	real, err := filepath.EvalSymlinks(parts.Dir(b.host.RootDir)) // a root directory may lie behind links
	if err != nil {
		return nil, err
	}
	bound, err := mount.Below(mounts, real)
	if err != nil {
		return nil, err
	}
	slices.Reverse(bound)
	slices.SortStableFunc(bound, func(a, b mount.Entry) int {
		return cmp.Compare(strings.Count(b.Target, "/"), strings.Count(a.Target, "/"))
	})
	return bound, nil
}

// Unbind unmounts the sub-paths of a volume and removes their mount points. It is
// idempotent, and waits for binds that were admitted before. A detached bind is
// no failure of Unbind: the caller goes on, and returns it at the end. It is also
// said beside a failure.
func (b *Binder) Unbind(ctx context.Context, parts SubPaths) (detached *lazyunmount.Error, err error) {
	unlock, err := b.binding.Lock(ctx, parts)
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir := parts.Dir(b.host.RootDir)
	// A directory that is gone, or can be removed, has nothing mounted in it.
	if err := eintr.Do(func() error { return unix.Rmdir(dir) }); err == nil || errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	bound, err := b.Bound(parts)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range bound {
		err := podmount.UnmountAll(ctx, b.host.Mounter, e.Target, b.subPathLadder(e))
		if d, ok := errors.AsType[*lazyunmount.Error](err); ok {
			detached = podmount.JoinDetached(detached, d)
		}
		if podmount.IsDetached(err) {
			err = nil
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return detached, err
	}
	return detached, removeMountPoints(dir)
}

// subPathLadder is how hard to try. Unmounting a bind asks no server while the
// volume itself is mounted, but a process that waits for the server keeps it
// busy. Detached is only what of it can be told later that it is gone.
func (b *Binder) subPathLadder(e mount.Entry) mount.UnmountOptions {
	options := mount.UnmountOptions{Holders: true}
	if _, known := table.SuperblockOf(b.host.Mounter, e).Alive(); known {
		options.ForceAfter, options.LazyAfter = subPathForceAfter, subPathLazyAfter
	}
	return options
}

// removeMountPoints removes what sub-paths were bound to: <container>/<index>.
func removeMountPoints(dir string) error {
	containers, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, c := range containers {
		container := filepath.Join(dir, c.Name())
		points, err := os.ReadDir(container)
		if err != nil {
			return err
		}
		for _, p := range points {
			if err := podmount.RemovePoint(filepath.Join(container, p.Name())); err != nil {
				return err
			}
		}
		if err := podmount.RemoveDir(container); err != nil {
			return err
		}
	}
	return podmount.RemoveDir(dir)
}
