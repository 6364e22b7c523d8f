package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/mountopt"
	"github.com/podvol/podvol/mount/internal/mounttable"
)

// This file does with mount(2) alone what the other native_*.go files do with
// the calls that came with Linux 5.2 to 5.14. The results are the same, but a
// mount is seen before its options are complete, and is undone if they cannot
// be had.

// mountNewByMount2 mounts a file system.
func (n *native) mountNewByMount2(ctx context.Context, fs filesystem) error {
	data, err := dataOfMount2(fs.data)
	if err != nil {
		return err
	}
	if err := n.openByParent(); err != nil {
		return err
	}
	if err := n.commit(ctx); err != nil {
		return err
	}
	flags := n.options.Set
	if n.options.ReadOnlyAt == mountopt.MountLayer {
		flags &^= unix.MS_RDONLY
	}
	if err := n.api.Mount(fs.source, fdPath(n.target), fs.fstype, flags, data); err != nil {
		return n.explainMount2(err)
	}
	return n.finishOrUndo(func(mount int) error {
		if n.options.ReadOnlyAt != mountopt.BothLayers {
			return n.remountFrom(mount, n.options.Set&mountopt.PerMountFlags&^unix.MS_RDONLY)
		}
		return nil
	})
}

// dataOfMount2 joins the options of a file system. Mount(2) reads one page with a
// NUL at its end and silently leaves out the rest.
func dataOfMount2(options []string) (string, error) {
	data := strings.Join(options, ",")
	if most := os.Getpagesize() - 1; len(data) > most {
		return "", failure.Of(mount.ErrBadOption, fmt.Errorf("the options of the file system have %d bytes and mount(2) takes at most %d, shorten them or the paths in them", len(data), most))
	}
	return data, nil
}

// explainMount2 adds what an errno means where only one call was made.
func (n *native) explainMount2(err error) error {
	refused := &failure.Kernel{Call: callMount, Err: err}
	switch {
	case errors.Is(err, unix.ENODEV):
		refused.Call = callOpen
	case errors.Is(err, unix.ENOTDIR) && !n.at.isDir():
		return failure.Of(mount.ErrKindMismatch, refused)
	}
	return refused
}

// bindByMount2 binds a directory or file.
func (n *native) bindByMount2(ctx context.Context) error {
	source, err := openPath(unix.AT_FDCWD, n.request.Source, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return failure.Of(mount.ErrNoSource, err)
	}
	if err != nil {
		return err
	}
	n.keep(source)
	if err := n.openByParent(); err != nil {
		return err
	}
	flags := uintptr(unix.MS_BIND)
	if n.options.Recursive {
		flags |= unix.MS_REC
	}
	if err := n.commit(ctx); err != nil {
		return err
	}
	err = n.api.Mount(fdPath(source), fdPath(n.target), "", flags, "")
	if errors.Is(err, unix.ENOTDIR) {
		return failure.Of(mount.ErrKindMismatch, err)
	}
	if err != nil {
		return &failure.Kernel{Call: "bind", Err: err}
	}
	return n.finishOrUndo(func(mount int) error {
		if set, clear := n.options.OfMount(); set|clear == 0 {
			return nil
		}
		return n.remountEach(mount)
	})
}

// finishOrUndo does finish to the mount just made on target, and unmounts it
// again if that fails or if the mount is not where it was asked for.
func (n *native) finishOrUndo(finish func(mount int) error) error {
	err := n.checkCovered()
	if err == nil {
		var mount int
		if mount, _, err = n.openNamed(); err == nil {
			err = finish(mount)
		}
		if err == nil {
			err = n.propagate(mount)
		}
	}
	if err == nil {
		return nil
	}
	return n.undoMount2(err)
}

// undoMount2 unmounts the new mount on target, wherever that is by now, and
// returns the error with what remains.
func (n *native) undoMount2(err error) error {
	path, undoErr := os.Readlink(fdPath(n.target))
	if undoErr != nil {
		return failure.WithoutUndo(err, undoErr)
	}
	made, known, lookErr := mounttable.SightingAt(n.table, path)
	if undoErr := n.undo(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); undoErr != nil {
		return failure.WithoutUndo(err, undoErr)
	}
	if lookErr != nil || !known {
		return n.afterDetaching(err, nil)
	}
	return n.afterDetaching(err, &made.Entry)
}

// remountByMount2 changes the options of the mount at the target, and unless bind
// is asked for, its file system's.
func (n *native) remountByMount2() error {
	if n.options.Bind {
		return n.remountEach(n.target)
	}
	data, err := dataOfMount2(n.options.Data)
	if err != nil {
		return err
	}
	e, err := mounttable.MountWithID(n.table, n.at.mount)
	if err != nil {
		return err
	}
	// mount(2) clears flags that are not mentioned, and knows read-only once.
	flags := unix.MS_REMOUNT | n.options.ApplyToMount(mountopt.FlagsShown(e.Options))&^unix.MS_RDONLY
	flags |= n.options.ApplyToSuper(superFlagsShown(e.SuperOptions)) | n.options.Set&unix.MS_SILENT
	if err := n.api.Mount("", fdPath(n.target), "", flags, data); err != nil {
		return &failure.Kernel{Call: "remount", Err: err}
	}
	readOnly := func(flags uintptr) bool { return flags&unix.MS_RDONLY != 0 }
	if n.options.IsDeep() || readOnly(flags) != readOnly(n.options.ApplyToMount(mountopt.FlagsShown(e.Options))) {
		if err := n.remountFrom(n.target, mountopt.FlagsShown(e.Options)); err != nil {
			return failure.WithoutUndo(err, errStaysChanged)
		}
	}
	return nil
}

// remountEach gives the mount its own options, and those below it theirs, one
// after the other.
func (n *native) remountEach(mount int) error {
	at, err := look(mount, "")
	if err != nil {
		return err
	}
	e, err := mounttable.MountWithID(n.table, at.mount)
	if err != nil {
		return err
	}
	return n.remountFrom(mount, mountopt.FlagsShown(e.Options))
}

func (n *native) remountFrom(mount int, current uintptr) error {
	if err := n.remountOne(mount, current, n.options.ApplyToMount(current)); err != nil {
		return err
	}
	if !n.options.IsDeep() {
		return nil
	}
	at, err := look(mount, "")
	if err != nil {
		return err
	}
	entries, err := n.table.All()
	if err != nil {
		return err
	}
	within := map[int]bool{at.mount: true}
	for _, e := range entries { // parents first
		if !within[e.ParentID] || within[e.ID] {
			continue
		}
		within[e.ID] = true
		if err := n.remountBelow(mount, e); err != nil {
			return err
		}
	}
	return nil
}

// remountBelow changes a mount below the one that is open as top. One that is
// covered by another cannot be reached by any process.
func (n *native) remountBelow(top int, e mount.Entry) error {
	at, err := os.Readlink(fdPath(top))
	if err != nil {
		return err
	}
	below, err := openPath(top, "."+strings.TrimPrefix(e.Target, strings.TrimSuffix(at, "/")), unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(below)
	found, err := look(below, "")
	if err != nil || found.mount != e.ID {
		return err
	}
	// Its id is its own only since it is open: before, another may have had it.
	now, ok, err := mounttable.SightingAt(n.table, e.Target)
	if err != nil || !ok || now.ID != e.ID {
		return err
	}
	current := mountopt.FlagsShown(now.Options)
	return n.remountOne(below, current, n.options.ApplyBelow(current))
}

// remountOne sets the flags of one mount. Mount(2) takes a call without a way
// of atime for one to leave it.
func (n *native) remountOne(mount int, current, flags uintptr) error {
	if flags&mountopt.OneAtimeOf == 0 {
		flags |= unix.MS_RELATIME
	}
	err := n.api.Mount("", fdPath(mount), "", unix.MS_REMOUNT|unix.MS_BIND|flags, "")
	if errors.Is(err, unix.EPERM) && current&^flags != 0 {
		return lockedError(namesOfFlags(current &^ flags))
	}
	if err != nil {
		return fmt.Errorf("apply the options of the mount: %w", err)
	}
	return nil
}

// namesOfFlags names the flags that were to be taken away; mount(2) does not
// say which of them is locked.
func namesOfFlags(flags uintptr) []string {
	var names []string
	for _, a := range attributeNames() {
		if flags&a.flag != 0 {
			names = append(names, a.on)
		}
	}
	return names
}

// superFlagsShown returns the flags behind a file system's options as a mount
// table shows them.
func superFlagsShown(options []string) uintptr {
	return mountopt.Parse(options...).Set & mountopt.PerSuperFlags
}
