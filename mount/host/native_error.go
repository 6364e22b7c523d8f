package host

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/mounttable"
)

// The calls by which a failure is told apart from another.
const (
	callOpen   = "fsopen"
	callOption = "fsconfig"
	callCreate = "open the file system"
	callAttach = "move_mount"
	callMount  = "mount"
)

// optionError is an error about one option of the request.
type optionError struct {
	option string // masked where it is sensitive
	err    error
}

func (e *optionError) Error() string { return e.err.Error() }

func (e *optionError) Unwrap() error { return e.err }

// lackingError says that this kernel lacks a call, or that a filter of system
// calls keeps it from us: mount(2) is to be used instead.
type lackingError struct{ err error }

func (e *lackingError) Error() string {
	return "a call of the new mount API is not to be had: " + e.err.Error()
}

func (e *lackingError) Unwrap() error { return e.err }

// lacking marks the error of a call that does not exist.
func lacking(err error) error {
	if errors.Is(err, unix.ENOSYS) {
		return &lackingError{err}
	}
	return err
}

// lackingOrDenied is for the first call on each way: EPERM may come from a
// filter that knows only mount(2). If it does not, mount(2) gives the same
// answer.
func lackingOrDenied(err error) error {
	if errors.Is(err, unix.EPERM) {
		return &lackingError{err}
	}
	return lacking(err)
}

// explain makes the *Error of a failed native request: why the kernel refused it,
// by errno, by the step, and by the node's state.
func (m *Mounter) explain(r mount.Request, err error) error {
	explained := r.Failed(err)
	e, ok := errors.AsType[*mount.Error](explained)
	if !ok || mount.KnownCause(err) != "" && e.Option != "" {
		return explained
	}
	if about, ok := errors.AsType[*optionError](err); ok {
		e.Option = about.option
	}
	if about, ok := errors.AsType[*nfsError](err); ok {
		about.complete(e)
	}
	refused, ok := errors.AsType[*failure.Kernel](err)
	if !ok || mount.KnownCause(err) != "" {
		return explained
	}
	switch {
	case refused.Call == callOption && !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.EPERM):
		e.Cause = mount.ErrBadOption
	case refused.Call == callOpen && errors.Is(err, unix.ENODEV):
		e.Cause, e.Also = m.config.weigh(r, mount.ErrNoFilesystem)
	}
	return explained
}

// explainSource says why the source of a bind mount cannot be bound.
func (n *native) explainSource(err error) error {
	refused := &failure.Kernel{Call: "open_tree", Err: &os.PathError{Op: "bind", Path: n.request.Source, Err: err}}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return failure.Of(mount.ErrNoSource, refused)
	case errors.Is(err, unix.EINVAL):
		return n.explainUncopied(refused)
	}
	return lackingOrDenied(refused)
}

// explainUncopied says why the kernel copies no mount: it is unbindable, or
// what it hides is locked.
func (n *native) explainUncopied(err error) error {
	source, openErr := openPath(unix.AT_FDCWD, n.request.Source, 0)
	if openErr != nil {
		return err
	}
	defer unix.Close(source)
	at, lookErr := look(source, "")
	if lookErr != nil {
		return err
	}
	if e, tableErr := mounttable.MountWithID(n.table, at.mount); tableErr == nil && len(e.Propagation) > 0 && e.Propagation[len(e.Propagation)-1] == "unbindable" {
		return failure.Of(mount.ErrNotPermitted, fmt.Errorf("the mount at %s is unbindable: %w", e.Target, err))
	}
	if n.options.Recursive {
		return err
	}
	return failure.Of(mount.ErrNotPermitted, fmt.Errorf("the mounts below it are locked by the namespace that they came from, and a user namespace cannot bind it without them: bind them along (rbind), or do it as root: %w", err))
}

// explainAttach says why a mount cannot be attached: the kernel says EINVAL
// where mount(2) would have told the kinds apart.
func (n *native) explainAttach(tree int, err error) error {
	refused := &failure.Kernel{Call: callAttach, Err: err}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTDIR) {
		return refused
	}
	if made, lookErr := look(tree, ""); lookErr == nil && made.isDir() != n.at.isDir() {
		return failure.Of(mount.ErrKindMismatch, refused)
	}
	return refused
}
