package host

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/mountopt"
	"github.com/podvol/podvol/mount/internal/mounttable"
)

// landing watches where mount(8) mounts. It resolves the target on its own, so
// a link that is put among the target's parents meanwhile leads it astray.
type landing struct {
	m       *Mounter
	request mount.Request
	// flags are the caller's for mount(8).
	flags []string
	// parent is the directory that held the target before, and name the
	// target in it.
	parent int
	name   string
	// before are all mounts then, by their ids.
	before map[int]mounttable.Sighting
}

// prepare opens the target's parent, refuses a target that does not exist or is a
// link, and notes all mounts.
func (l *landing) prepare() error {
	target := filepath.Clean(l.request.Target)
	fd, err := openPath(unix.AT_FDCWD, filepath.Dir(target), unix.O_DIRECTORY)
	if err != nil {
		return targetError(err)
	}
	l.parent, l.name = fd, filepath.Base(target)
	if target == "/" {
		l.name = "."
	}
	at, err := look(fd, l.name)
	switch {
	case err != nil:
		return targetError(err)
	case at.isLink():
		return failure.Of(mount.ErrTargetIsLink, nil)
	}
	seen, err := mounttable.SightingsOf(l.m.table)
	if err != nil {
		return err
	}
	l.before = make(map[int]mounttable.Sighting, len(seen))
	for _, s := range seen {
		l.before[s.ID] = s
	}
	return nil
}

// newAt returns the mount at path, which is canonical, if it was not there
// before.
func (l *landing) newAt(path string) (s mounttable.Sighting, isNew bool, err error) {
	s, ok, err := mounttable.SightingAt(l.m.table, path)
	if err != nil || !ok {
		return mounttable.Sighting{}, false, err
	}
	before, known := l.before[s.ID]
	return s, !known || !before.IsSame(s), nil
}

func (l *landing) close() {
	if l.parent >= 0 {
		unix.Close(l.parent)
	}
}

// place is the path of the target that was opened, by now.
func (l *landing) place() (string, error) {
	dir, err := os.Readlink(fdPath(l.parent))
	return path.Join(dir, l.name), err
}

// isHere reports whether a new mount is at the target that was opened.
func (l *landing) isHere() (bool, error) {
	place, err := l.place()
	if err != nil {
		return false, err
	}
	_, isNew, err := l.newAt(place)
	return isNew, err
}

// check undoes a mount that was led elsewhere. A command that mounted nothing
// may have had nothing to mount, as with a remount.
func (l *landing) check() error {
	here, err := l.isHere()
	if err != nil || here {
		return nil // it did what it was asked, as far as can be seen
	}
	e, ok, err := l.m.table.At(l.request.Target)
	if err != nil || !ok {
		return nil
	}
	astray, isNew, err := l.newAt(e.Target)
	if err != nil || !isNew {
		return nil
	}
	// A mount elsewhere is where the target's path leads to.
	place, _ := l.place()
	if astray.Target == place {
		return nil
	}
	replaced := failure.Of(mount.ErrTargetReplaced, fmt.Errorf("mount(8) mounted on %s instead of %s", astray.Target, place))
	undo := &hostUnmount{m: l.m, target: astray.Target}
	undo.found.Store(&astray)
	var g gate
	if err := undo.unmount(&g, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return failure.WithoutUndo(replaced, err)
	}
	return afterDetaching(replaced, &astray.Entry)
}

// provesNothing reports whether nothing was done for sure, now that all that
// the command started has ended. The mount table shows it of a new mount only.
func (l *landing) provesNothing() bool {
	options := mountopt.Parse(slices.Concat(l.request.Options, l.request.Sensitive)...)
	switch {
	case len(l.flags) > 0, options.Remount, len(options.Propagation) > 0, slices.Contains(options.Command, "move"):
		return false // it changes, or may change, a mount that was there before
	case slices.Contains(options.Data, "bg"):
		return false // mount.nfs goes on in the background
	case l.m.config.leavesDaemon(l.request.FSType):
		return false
	}
	here, err := l.isHere()
	return err == nil && !here && l.check() == nil
}
