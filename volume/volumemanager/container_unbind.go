package volumemanager

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/lazyunmount"
)

// These are how long a bound sub-path may stay busy before what is asked of its
// server is cut off, and before it is detached.
const (
	subPathForceAfter = 30 * time.Second
	subPathLazyAfter  = time.Minute
)

// unmountAll takes every mount off a path.
func (m *Manager) unmountAll(ctx context.Context, path string, options mount.UnmountOptions) error {
	return podmount.UnmountAll(ctx, m.host.Mounter, path, options)
}

// unbind unmounts the sub-paths of a volume and removes their mount points. The
// mount table says which there are, so that it does not matter who bound them,
// or how that ended. What had to be detached is no failure of unbind: the caller
// goes on, and returns it at the end. It is also said beside a failure.
func (m *Manager) unbind(ctx context.Context, key subPathsKey) (detached *lazyunmount.Error, err error) {
	unlock, err := m.subPathLocks.Lock(ctx, key) // what was admitted before is waited for
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir := key.dir(m.host.RootDir)
	// A directory that is gone, or can be removed, has nothing mounted in it.
	if err := eintr.Do(func() error { return unix.Rmdir(dir) }); err == nil || errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	bound, err := m.mountsIn(dir)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range bound {
		err := m.unmountAll(ctx, e.Target, m.subPathLadder(e))
		if d, ok := errors.AsType[*lazyunmount.Error](err); ok {
			detached = joinDetached(detached, d)
		}
		if isDetached(err) {
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
func (m *Manager) subPathLadder(e mount.Entry) mount.UnmountOptions {
	options := mount.UnmountOptions{Holders: true}
	if _, known := table.SuperblockOf(m.host.Mounter, e).Alive(); known {
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
