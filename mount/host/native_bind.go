package host

import (
	"context"
	"errors"
	"fmt"

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
