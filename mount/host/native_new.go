package host

import (
	"context"
	"errors"
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
