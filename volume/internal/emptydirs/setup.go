package emptydirs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// SetUp makes dir what o says. It is idempotent: a directory or mount that is
// there with its marker is left as it is, with the contents, owner and mode
// that the pod may have changed since; only the size of a tmpfs is brought up
// to date. Where it fails, it removes what this
// call made. Invalid options are a *[volume.InvalidSpecError], another mount at
// dir is a *[podmount.OccupiedError], and errors that left nothing behind are
// marked by [volume.NothingDone]. Calls for one dir must not overlap.
func SetUp(ctx context.Context, v volume.PodVolume, dir string, o Options) error {
	o, err := o.normal()
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return volume.NothingDone(context.Cause(ctx))
	}
	mark := markerOf(v, dir, o.Wrapped)
	ready, err := mark.isSet()
	if err != nil {
		return volume.NothingDone(err)
	}
	if o.Medium == v1.StorageMediumDefault {
		return setUpDirectory(ctx, v.Host.GetMounter(), dir, o, mark, ready)
	}
	return setUpMount(ctx, v.Host.GetMounter(), dir, o, mark, ready)
}

func setUpDirectory(ctx context.Context, m mount.Interface, dir string, o Options, mark marker, ready bool) error {
	nothing := func(mount.Entry) bool { return false }
	if _, err := podmount.Mounted(m, mount.Request{Source: "a plain directory", Target: dir}, nothing); err != nil {
		return err
	}
	made, err := podmount.MakeDir(dir, 0o700) // until it has its own mode, which may keep its owner out
	if err != nil {
		return volume.NothingDone(err)
	}
	if ready && !made {
		return nil
	}
	return complete(ctx, m, dir, o, mark, made)
}

func setUpMount(ctx context.Context, m mount.Interface, dir string, o Options, mark marker, ready bool) error {
	request, err := o.request(dir)
	if err != nil {
		return err
	}
	same := func(e mount.Entry) bool { return e.FSType == request.FSType }
	mounted, err := podmount.Mounted(m, request, same)
	switch {
	case err != nil:
		return err
	case mounted && ready:
		return resize(ctx, m, dir, o)
	case mounted:
		return complete(ctx, m, dir, o, mark, false)
	}
	if err := checkNothingHidden(dir, o.Medium); err != nil {
		return volume.NothingDone(err)
	}
	// A marker without its mount outlived a reboot, and says nothing.
	if err := mark.clear(); err != nil {
		return volume.NothingDone(err)
	}
	if err := mountMedium(ctx, m, request, same); err != nil {
		return err
	}
	return complete(ctx, m, dir, o, mark, true)
}

// complete does what remains once the directory or mount is there, and undoes
// everything when it fails, unless the directory was not made by this call: it
// may hold a user's data then.
func complete(ctx context.Context, m mount.Interface, dir string, o Options, mark marker, made bool) error {
	err := own(dir, o)
	if err == nil {
		err = mark.set()
	}
	if err == nil {
		return nil
	}
	undoErr := mark.clear()
	if !made {
		return errors.Join(err, undoErr)
	}
	if undoErr = errors.Join(undoErr, podmount.Undo(ctx, m, dir)); undoErr != nil {
		return fmt.Errorf("%w; and cleaning up after it failed: %w", err, undoErr)
	}
	return volume.NothingDone(err)
}

// own gives the directory its exact mode and group.
func own(dir string, o Options) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	if o.GID != nil {
		if err := d.Chown(-1, int(*o.GID)); err != nil {
			return ownershipError(*o.GID, err)
		}
	}
	// After the change of group, which may clear the setgid bit.
	return d.Chmod(*o.Mode)
}

func ownershipError(gid int64, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("the volume cannot be given to group %d (fsGroup): %w; run as root or use a group of this user", gid, err)
	}
	return err
}
