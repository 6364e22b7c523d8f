package host

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/mountopt"
	"github.com/podvol/podvol/mount/internal/mounttable"
)

// bind shows a directory or file at the target. Its options are set while
// no process can see it: a read-only bind mount is never writable.
func (n *native) bind(ctx context.Context) error {
	if err := n.checkBindOptions(); err != nil {
		return err
	}
	err := n.bindOutOfSight(ctx)
	if _, ok := errors.AsType[*lackingError](err); ok {
		return n.bindByMount2(ctx)
	}
	return err
}

func (n *native) bindOutOfSight(ctx context.Context) error {
	tree, err := n.api.OpenTree(unix.AT_FDCWD, n.request.Source, n.options.Recursive)
	if err != nil {
		return n.explainSource(err)
	}
	n.keep(tree)
	if err := n.mapIDs(tree); err != nil {
		return err
	}
	// A copy is in no table: what it has is what its source has.
	current := func() (uintptr, error) { return n.flagsOfSource() }
	if err := n.setAttributes(tree, current); err != nil {
		return err
	}
	return n.attach(ctx, tree)
}

// flagsOfSource returns the flags of the mount that the source lies in.
func (n *native) flagsOfSource() (uintptr, error) {
	source, err := openPath(unix.AT_FDCWD, n.request.Source, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(source)
	at, err := look(source, "")
	if err != nil {
		return 0, err
	}
	e, err := mounttable.MountWithID(n.table, at.mount)
	return mountopt.FlagsShown(e.Options), err
}

// remountBind changes the options of the mount at the target and of no other
// mount of its file system.
func (n *native) remountBind(ctx context.Context) error {
	if err := n.checkBindOptions(); err != nil {
		return err
	}
	if !n.at.root {
		return failure.Of(mount.ErrNotMounted, unix.EINVAL)
	}
	return n.remountWith(ctx, func() error {
		err := n.setAttributes(n.target, n.flagsOfTarget)
		if _, ok := errors.AsType[*lackingError](err); ok {
			return n.remountByMount2()
		}
		return err
	})
}

func (n *native) flagsOfTarget() (uintptr, error) {
	e, err := mounttable.MountWithID(n.table, n.at.mount)
	return mountopt.FlagsShown(e.Options), err
}

// checkBindOptions refuses what a bind mount cannot have of its own; the
// kernel would ignore it.
func (n *native) checkBindOptions() error {
	if data := n.options.Data; len(data) > 0 {
		return failure.Of(mount.ErrBadOption, &optionError{
			option: n.request.MaskOption(data[0]),
			err:    fmt.Errorf("%s of a file system cannot be set by a bind mount", optionCount(len(data))),
		})
	}
	if n.options.Set&^(mountopt.PerMountFlags|unix.MS_SILENT) != 0 || n.options.ReadOnlyAt == mountopt.SuperLayer {
		return failure.Of(mount.ErrBadOption, errors.New("sync, dirsync, mand, lazytime, iversion and ro=fs belong to the file system and cannot be set by a bind mount"))
	}
	return nil
}

// optionCount counts rather than names: an option may be sensitive.
func optionCount(n int) string {
	if n == 1 {
		return "one option"
	}
	return fmt.Sprintf("%d options", n)
}

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

// changeOf is the change of a mount's attributes that flags asked for and
// against make. A word that only takes back one way of atime ("atime") takes
// back what it names and no other, so current says what there is; it is asked
// only then.
func changeOf(set, clear uintptr, current func() (uintptr, error)) (unix.MountAttr, error) {
	change := unix.MountAttr{Attr_set: attributesOf(set)}
	for _, a := range attributeNames() {
		if clear&a.flag != 0 {
			change.Attr_clr |= a.attribute
		}
	}
	switch {
	case set&mountopt.OneAtimeOf != 0:
		change.Attr_clr |= unix.MOUNT_ATTR__ATIME
	case clear&mountopt.OneAtimeOf != 0:
		now, err := current()
		if err != nil {
			return change, err
		}
		if now&clear&mountopt.OneAtimeOf != 0 {
			change.Attr_clr |= unix.MOUNT_ATTR__ATIME // to relatime
		}
	}
	return change, nil
}

// setAttributes changes a mount as the request says, and the mounts below it
// where it says so. Both are one call where they are the same. The mount that
// holds what was there before is flags' source.
func (n *native) setAttributes(mount int, current func() (uintptr, error)) error {
	set, clear := n.options.OfMount()
	if n.options.IsDeep() {
		change, err := changeOf(n.options.DeepSet&mountopt.PerMountFlags, n.options.DeepClear&mountopt.PerMountFlags, current)
		if err != nil {
			return err
		}
		if err := n.setAttributesOf(mount, true, change); err != nil {
			return err
		}
		set, clear = set&^n.options.DeepSet, clear&^n.options.DeepClear
	}
	change, err := changeOf(set, clear, current)
	if err != nil || change == (unix.MountAttr{}) {
		return err
	}
	return n.setAttributesOf(mount, false, change)
}

func (n *native) setAttributesOf(mount int, recursive bool, change unix.MountAttr) error {
	err := n.api.MountSetattr(mount, recursive, change)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return n.explainDenied(mount, recursive, change)
	case errors.Is(err, unix.EINVAL) && (change.Attr_set|change.Attr_clr)&unix.MOUNT_ATTR_NOSYMFOLLOW != 0:
		return &lackingError{err} // before Linux 5.14
	}
	return lacking(&failure.Kernel{Call: "mount_setattr", Err: err})
}

// explainDenied finds out which flags may not be taken away, on a copy that
// no process sees. A filter of system calls that denies every call of this name is
// as good as a kernel without it.
func (n *native) explainDenied(mount int, recursive bool, change unix.MountAttr) error {
	if errors.Is(n.api.MountSetattr(mount, false, unix.MountAttr{}), unix.EPERM) {
		return &lackingError{unix.EPERM}
	}
	probe, err := n.api.OpenTree(mount, "", recursive)
	if err != nil {
		return lockedError(nil)
	}
	defer unix.Close(probe)
	denied := func(change unix.MountAttr) bool {
		return errors.Is(n.api.MountSetattr(probe, recursive, change), unix.EPERM)
	}
	var locked []string
	for _, a := range attributeNames() {
		if change.Attr_clr&a.attribute != 0 && denied(unix.MountAttr{Attr_clr: a.attribute}) {
			locked = append(locked, a.on)
		}
	}
	if change.Attr_clr&unix.MOUNT_ATTR__ATIME != 0 {
		atime := unix.MountAttr{Attr_set: change.Attr_set & unix.MOUNT_ATTR__ATIME, Attr_clr: unix.MOUNT_ATTR__ATIME}
		if denied(atime) {
			locked = append(locked, "its way of atime")
		}
	}
	return lockedError(locked)
}

// lockedError names the flags that a less privileged mount namespace keeps
// (mount_namespaces(7)).
func lockedError(locked []string) error {
	what := strings.Join(locked, ", ")
	if what == "" {
		what = "one of the flags"
	}
	return failure.Of(mount.ErrNotPermitted, &optionError{
		option: what,
		err:    fmt.Errorf("%s cannot be taken away: the namespace that the mount came from keeps it locked: %w", what, unix.EPERM),
	})
}
