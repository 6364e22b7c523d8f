package mount

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// landing watches where mount(8) mounts. It resolves the target on its own, so
// a link that is put among the target's parents meanwhile leads it astray.
type landing struct {
	m       *HostMounter
	request Request
	// parent is the directory that held the target before, and name the
	// target in it.
	parent int
	name   string
	// before are the ids of all mounts then.
	before map[int]bool
}

// prepare opens the target's parent, refuses a target that does not exist or is
// a link, and notes what is mounted.
func (l *landing) prepare() error {
	target := filepath.Clean(l.request.Target)
	dir := filepath.Dir(target)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return targetError(&os.PathError{Op: "open", Path: dir, Err: err})
	}
	l.parent, l.name = fd, filepath.Base(target)
	if target == "/" {
		l.name = "."
	}
	var st unix.Stat_t
	err = unix.Fstatat(fd, l.name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	switch {
	case err != nil:
		return targetError(&os.PathError{Op: "stat", Path: target, Err: err})
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return &causedError{ErrTargetIsLink, nil}
	}
	entries, err := l.m.table.All()
	if err != nil {
		return err
	}
	l.before = make(map[int]bool, len(entries))
	for _, e := range entries {
		l.before[e.ID] = true
	}
	return nil
}

func (l *landing) close() {
	if l.parent >= 0 {
		unix.Close(l.parent)
	}
}

// place is the path of the target that was opened, by now.
func (l *landing) place() (string, error) {
	dir, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(l.parent))
	return path.Join(dir, l.name), err
}

// isHere reports whether a new mount is at the target that was opened.
func (l *landing) isHere() (bool, error) {
	place, err := l.place()
	if err != nil {
		return false, err
	}
	e, ok, err := l.m.table.At(place)
	return ok && !l.before[e.ID], err
}

// check undoes a mount that was led elsewhere. A command that mounted nothing
// may have had nothing to mount, as with a remount.
func (l *landing) check() error {
	here, err := l.isHere()
	if err != nil || here {
		return nil // it did what it was asked, as far as can be seen
	}
	e, ok, err := l.m.table.At(l.request.Target)
	if err != nil || !ok || l.before[e.ID] {
		return nil
	}
	// What was mounted elsewhere meanwhile is where the target's path leads to.
	place, _ := l.place()
	if e.Target == place {
		return nil
	}
	replaced := &causedError{ErrTargetReplaced, fmt.Errorf("mount(8) mounted on %s instead of %s", e.Target, place)}
	undo := &hostUnmount{m: l.m, target: e.Target}
	undo.found.Store(&e)
	var g gate
	if err := undo.unmount(&g, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return &halfDoneError{replaced, err}
	}
	return replaced
}

// provesNothing reports whether nothing was mounted for sure, now that all that
// the command started has ended.
func (l *landing) provesNothing() bool {
	for _, option := range parseOptions(slices.Concat(l.request.Options, l.request.Sensitive)...).Data {
		if option == "bg" {
			return false // mount.nfs goes on in the background
		}
	}
	if l.m.config.leavesDaemon(l.request.FSType) {
		return false
	}
	here, err := l.isHere()
	return err == nil && !here && l.check() == nil
}
