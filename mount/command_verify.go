package mount

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// landing watches where mount(8) mounts. It resolves the target on its own, so
// a link that is put among the target's parents meanwhile leads it astray.
type landing struct {
	m       *HostMounter
	request Request
	// flags are those of mount(8) that the caller has given.
	flags []string
	// parent is the directory that held the target before, and name the
	// target in it.
	parent int
	name   string
	// before are all mounts then, by their ids.
	before map[int]sighting
}

// prepare opens the target's parent, refuses a target that does not exist or is
// a link, and notes what is mounted.
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
		return &causedError{ErrTargetIsLink, nil}
	}
	seen, err := sightingsOf(l.m.table)
	if err != nil {
		return err
	}
	l.before = make(map[int]sighting, len(seen))
	for _, s := range seen {
		l.before[s.ID] = s
	}
	return nil
}

// newAt returns the mount at path, which is canonical, if it was not there
// before.
func (l *landing) newAt(path string) (s sighting, isNew bool, err error) {
	s, ok, err := sightingAt(l.m.table, path)
	if err != nil || !ok {
		return sighting{}, false, err
	}
	before, known := l.before[s.ID]
	return s, !known || !before.isSame(s), nil
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
	// What was mounted elsewhere meanwhile is where the target's path leads to.
	place, _ := l.place()
	if astray.Target == place {
		return nil
	}
	replaced := &causedError{ErrTargetReplaced, fmt.Errorf("mount(8) mounted on %s instead of %s", astray.Target, place)}
	undo := &hostUnmount{m: l.m, target: astray.Target}
	undo.found.Store(&astray)
	var g gate
	if err := undo.unmount(&g, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return &halfDoneError{replaced, err}
	}
	return afterDetaching(replaced, &astray.Entry)
}

// provesNothing reports whether nothing was done for sure, now that all that
// the command started has ended. The mount table shows it of a new mount only.
func (l *landing) provesNothing() bool {
	options := parseOptions(slices.Concat(l.request.Options, l.request.Sensitive)...)
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
