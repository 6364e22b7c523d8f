package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/mount/internal/mountopt"
)

// filesystem is what the kernel is told of one that is to be mounted.
type filesystem struct {
	fstype, source string
	// data are the file system's own options, in order.
	data []string
}

// mountNew mounts a file system. It may be called again with another one where
// it has failed.
func (n *native) mountNew(ctx context.Context, fs filesystem) error {
	if !n.fits(fs) {
		return n.mountNewByMount2(ctx, fs)
	}
	mount, err := n.create(fs)
	if err == nil {
		n.keep(mount)
		if err = n.refuseTwice(mount); err == nil {
			err = n.attach(ctx, mount)
		}
	}
	if _, ok := errors.AsType[*lackingError](err); ok {
		return n.mountNewByMount2(ctx, fs)
	}
	return err
}

// fits reports whether fsconfig can carry the request. It cannot carry long
// strings; a comma within one is refused by file systems that know only the old
// way, and escaped where the new way wants it plain; and i_version has no word.
func (n *native) fits(fs filesystem) bool {
	if n.options.Set&unix.MS_I_VERSION != 0 || len(fs.source) > mountapi.MaxString {
		return false
	}
	return !slices.ContainsFunc(fs.data, func(option string) bool {
		key, value, _ := strings.Cut(option, "=")
		return len(key) > mountapi.MaxString || len(value) > mountapi.MaxString || strings.Contains(value, ",") && !isLabel(key)
	})
}

// isLabel tells the options that hold a security label: the kernel takes them
// before the file system does, with commas and without the quotes around them.
func isLabel(key string) bool {
	return slices.Contains([]string{"context", "fscontext", "defcontext", "rootcontext", "seclabel"}, key)
}

// interrupted is how often a file system is begun anew after a signal.
const interrupted = 10

// create makes the file system and returns a mount of it that is attached
// nowhere.
func (n *native) create(fs filesystem) (mount int, err error) {
	for range interrupted {
		mount, err = n.createOnce(fs)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return mount, err
}

func (n *native) createOnce(fs filesystem) (mount int, err error) {
	context, err := n.api.Fsopen(fs.fstype)
	if err != nil {
		return -1, lackingOrDenied(&failure.Kernel{Call: callOpen, Err: err})
	}
	defer unix.Close(context)
	c := configuration{n.api, n.request, context}
	if err := c.setString("source", fs.source); err != nil {
		return -1, err
	}
	set, _ := n.options.OfSuper()
	if err := c.setFlags(superWords(set)); err != nil {
		return -1, err
	}
	if err := c.setOptions(fs.data); err != nil {
		return -1, err
	}
	if err := n.api.Create(context); err != nil {
		return -1, c.failed(callCreate, err)
	}
	ofMount, _ := n.options.OfMount()
	mount, err = n.api.Fsmount(context, attributesOf(ofMount))
	if err != nil && ofMount&unix.MS_NOSYMFOLLOW != 0 && errors.Is(err, unix.EINVAL) {
		return -1, &lackingError{err} // before Linux 5.14
	}
	if err != nil {
		return -1, c.failed("fsmount", err)
	}
	return mount, nil
}

// refuseTwice refuses to mount a file system on itself, as mount(2) does: a
// caller that asks again for the same mount learns of it.
func (n *native) refuseTwice(tree int) error {
	if !n.at.root {
		return nil
	}
	made, err := look(tree, "")
	if err == nil && made.device == n.at.device {
		err = failure.Of(mount.ErrBusy, &failure.Kernel{Call: callAttach, Err: unix.EBUSY})
	}
	return err
}

// configuration fills in a file-system context. Its errors are masked: they
// are handed on as they are.
type configuration struct {
	api     mountapi.Calls
	request mount.Request
	context int
}

func (c configuration) setOptions(options []string) error {
	for _, option := range options {
		key, value, hasValue := strings.Cut(option, "=")
		if genericName(key) {
			return c.refused(option, unix.EINVAL) // "ro=nonsense"
		}
		var err error
		switch {
		case !hasValue:
			err = c.setFlag(option)
		case isLabel(key):
			err = c.setString(key, strings.Trim(value, `"`))
		default:
			err = c.setString(key, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c configuration) setFlags(words []string) error {
	for _, word := range words {
		if err := c.setFlag(word); err != nil {
			return err
		}
	}
	return nil
}

func (c configuration) setFlag(key string) error {
	return c.refused(key, c.api.SetFlag(c.context, key))
}

func (c configuration) setString(key, value string) error {
	return c.refused(key+"="+value, c.api.SetString(c.context, key, value))
}

func (c configuration) refused(option string, err error) error {
	if err == nil {
		return nil
	}
	return &optionError{c.request.MaskOption(option), c.failed(callOption, err)}
}

// failed adds what the kernel says about an error.
func (c configuration) failed(call string, err error) error {
	lines := c.api.Log(c.context)
	for i, line := range lines {
		lines[i] = c.request.Mask(line)
	}
	return lacking(&failure.Kernel{Call: call, Lines: lines, Err: err})
}

// genericName reports whether a key is a file-system-independent word.
func genericName(key string) bool {
	_, _, ok := mountopt.GenericFlag(key)
	return ok
}

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
