package host

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/mountopt"
)

// attributesOf translates the flags of a new mount into MOUNT_ATTR_*.
func attributesOf(flags uintptr) uint64 {
	var attributes uint64
	for _, a := range attributeNames() {
		if flags&a.flag != 0 {
			attributes |= a.attribute
		}
	}
	switch { // relatime, the default, is 0
	case flags&unix.MS_NOATIME != 0:
		attributes |= unix.MOUNT_ATTR_NOATIME
	case flags&unix.MS_STRICTATIME != 0:
		attributes |= unix.MOUNT_ATTR_STRICTATIME
	}
	return attributes
}

// attributeName is a flag that is an attribute of its own.
type attributeName struct {
	flag      uintptr
	attribute uint64
	// on and off are its words.
	on, off string
}

// attributeNames are all but the atime ones, which exclude each other.
func attributeNames() []attributeName {
	return []attributeName{
		{unix.MS_RDONLY, unix.MOUNT_ATTR_RDONLY, "ro", "rw"},
		{unix.MS_NOSUID, unix.MOUNT_ATTR_NOSUID, "nosuid", "suid"},
		{unix.MS_NODEV, unix.MOUNT_ATTR_NODEV, "nodev", "dev"},
		{unix.MS_NOEXEC, unix.MOUNT_ATTR_NOEXEC, "noexec", "exec"},
		{unix.MS_NOSYMFOLLOW, unix.MOUNT_ATTR_NOSYMFOLLOW, "nosymfollow", "symfollow"},
		{unix.MS_NODIRATIME, unix.MOUNT_ATTR_NODIRATIME, "nodiratime", "diratime"},
	}
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

// superWords are the words by which fsconfig knows the flags of a file system.
func superWords(set uintptr) []string {
	var words []string
	for _, s := range superNames() {
		if set&s.flag != 0 {
			words = append(words, s.on)
		}
	}
	return words
}

// superOffWords are the words that take such flags back.
func superOffWords(clear uintptr) []string {
	var words []string
	for _, s := range superNames() {
		if clear&s.flag != 0 && s.off != "" {
			words = append(words, s.off)
		}
	}
	return words
}

// superName is a flag of a file system and its words. That it exists on its own
// is the VFS's doing: no file system need know them.
type superName struct {
	flag    uintptr
	on, off string
}

func superNames() []superName {
	return []superName{
		{unix.MS_RDONLY, "ro", "rw"},
		{unix.MS_SYNCHRONOUS, "sync", "async"},
		{unix.MS_DIRSYNC, "dirsync", ""},
		{unix.MS_MANDLOCK, "mand", "nomand"},
		{unix.MS_LAZYTIME, "lazytime", "nolazytime"},
	}
}
