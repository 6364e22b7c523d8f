package host

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/mountopt"
)

// remount changes the options of the mount at the target, and keeps those that
// are not mentioned. The mount comes first, as that can be undone; then the file
// system, for all its mounts.
func (n *native) remount(ctx context.Context) error {
	if !n.at.root {
		return failure.Of(mount.ErrNotMounted, unix.EINVAL)
	}
	if n.options.Set&unix.MS_I_VERSION != 0 {
		return n.remountWith(ctx, n.remountByMount2)
	}
	return n.remountWith(ctx, func() error {
		err := n.reconfigure()
		if _, ok := errors.AsType[*lackingError](err); ok {
			return n.remountByMount2()
		}
		return err
	})
}

func (n *native) remountWith(ctx context.Context, change func() error) error {
	if err := n.commit(ctx); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	if err := n.propagate(n.target); err != nil {
		return failure.WithoutUndo(err, errStaysChanged)
	}
	return nil
}

// errStaysChanged says why a remount that failed is not undone.
var errStaysChanged = errors.New("the options are changed already")

// reconfigure does it by the new calls. Until the file system has been told
// everything nothing is changed.
func (n *native) reconfigure() error {
	set, clear := n.options.OfSuper()
	words := append(superWords(set), superOffWords(clear)...)
	if len(words) == 0 && len(n.options.Data) == 0 {
		return n.setAttributes(n.target, n.flagsOfTarget)
	}
	context, err := n.api.Fspick(n.target)
	if err != nil {
		return lackingOrDenied(&failure.Kernel{Call: "fspick", Err: err})
	}
	defer unix.Close(context)
	c := configuration{n.api, n.request, context}
	if err := c.setFlags(words); err != nil {
		return err
	}
	if err := c.setOptions(n.options.Data); err != nil {
		return err
	}
	before, err := n.flagsOfTarget()
	if err != nil {
		return err
	}
	if err := n.setAttributes(n.target, n.flagsOfTarget); err != nil {
		return err
	}
	if err := n.api.Reconfigure(context); err != nil {
		return errors.Join(c.failed("remount", err), n.restore(before))
	}
	return nil
}

// restore gives the mount the flags back that it had.
func (n *native) restore(flags uintptr) error {
	if n.options.IsDeep() {
		return failure.WithoutUndo(errors.New("the file system refuses"), errStaysChanged)
	}
	set, clear := n.options.OfMount()
	if (set|clear)&mountopt.PerMountFlags == 0 {
		return nil
	}
	change := unix.MountAttr{Attr_set: attributesOf(flags), Attr_clr: attributesOf(mountopt.PerMountFlags&^mountopt.AtimeFlags) | unix.MOUNT_ATTR_NODIRATIME | unix.MOUNT_ATTR__ATIME}
	if err := n.api.MountSetattr(n.target, false, change); err != nil {
		return failure.WithoutUndo(errors.New("the file system refuses"), err)
	}
	return nil
}

// setPropagation changes how mounts below the target spread.
func (n *native) setPropagation(ctx context.Context) error {
	if err := n.commit(ctx); err != nil {
		return err
	}
	err := n.propagate(n.target)
	if errors.Is(err, unix.EINVAL) && !n.at.root {
		return failure.Of(mount.ErrNotMounted, err)
	}
	return err
}

// propagate gives a mount the requested propagation, one change after the
// other.
func (n *native) propagate(mount int) error {
	for _, flag := range n.options.Propagation {
		err := n.api.MountSetattr(mount, flag&unix.MS_REC != 0, unix.MountAttr{Propagation: uint64(flag &^ unix.MS_REC)})
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
			err = n.api.Mount("", fdPath(mount), "", flag, "")
		}
		if err != nil {
			return &failure.Kernel{Call: "set the propagation", Err: err}
		}
	}
	return nil
}
