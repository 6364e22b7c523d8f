package mount

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// step is what was being done when the kernel refused.
type step string

const (
	stepOpen        step = "open the file system's type"
	stepOption      step = "set a mount option"
	stepCreate      step = "open the file system"
	stepMount       step = "make a mount of it"
	stepAttributes  step = "set the options of the mount"
	stepAttach      step = "attach the mount"
	stepRemount     step = "remount"
	stepBind        step = "bind"
	stepPropagation step = "set the propagation"
)

// kernelError is a refusal by the kernel.
type kernelError struct {
	step step
	// option is the one that was refused, as it was given, or empty. It may be
	// sensitive, and so may log be.
	option string
	// log is what the file-system context says, each with its level in front.
	log []string
	err error
}

func (e *kernelError) Error() string { return fmt.Sprintf("%s: %v", e.step, e.err) }
func (e *kernelError) Unwrap() error { return e.err }

// optionError is an error about an option that is not the kernel's message.
type optionError struct {
	option string // may be sensitive
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

// explain makes the *Error of a failed native request: why the kernel refused
// it, by errno, by what was being done, and by what the node has.
func (m *HostMounter) explain(r Request, err error) error {
	e := Error{Op: OpMount, Source: r.Source, Target: r.Target, FSType: r.FSType, Options: r.maskedOptions()}
	refused, ok := errors.AsType[*kernelError](err)
	if !ok {
		if wrong, ok := errors.AsType[*optionError](err); ok {
			e.Option = r.maskOption(wrong.option)
		}
		return wrapCall(err, e)
	}
	e.Option = r.maskOption(refused.option)
	e.Kernel = r.mask(kernelMessage(refused.log))
	if _, ok := errors.AsType[*causedError](err); ok {
		return wrapCall(err, e)
	}
	e.Err = err
	e.Cause, e.Also = m.causeOfRefusal(r, refused)
	e.Uncertain = leavesDoubt(err)
	return &e
}

// kernelMessage joins what went wrong; where the kernel names no error, its
// warnings and information have to do.
func kernelMessage(log []string) string {
	var errs, others []string
	for _, line := range log {
		if text, ok := strings.CutPrefix(line, "e "); ok {
			errs = append(errs, text)
			continue
		}
		_, text, _ := strings.Cut(line, " ")
		others = append(others, text)
	}
	if len(errs) > 0 {
		others = errs
	}
	return strings.Join(others, "; ")
}

// maskOption shows an option; of a sensitive one its name at most.
func (r Request) maskOption(option string) string {
	for _, element := range r.Sensitive {
		for _, secret := range splitOptions(element) {
			name, _, hasValue := strings.Cut(secret, "=")
			switch {
			case option != secret && option != element:
			case hasValue:
				return name
			default:
				return masked
			}
		}
	}
	return r.mask(option)
}

// causeOfRefusal says what an errno means to a mount by system calls.
func (m *HostMounter) causeOfRefusal(r Request, e *kernelError) (Cause, []Cause) {
	switch e.step {
	case stepOpen:
		if errors.Is(e.err, unix.ENODEV) {
			return m.config.weigh(r, ErrNoFilesystem)
		}
	case stepOption:
		if !errors.Is(e.err, unix.ENOMEM) && !errors.Is(e.err, unix.EPERM) {
			return ErrBadOption, nil
		}
	case stepCreate, stepRemount:
		return causeOfCreate(r, e), nil
	}
	return causeOf(e.err), nil
}

// causeOfCreate says why a file system could not be opened or changed. The
// kernel says EINVAL both of a wrong option and of a device that holds
// something else; it names the option if that was it.
func causeOfCreate(r Request, e *kernelError) Cause {
	device := strings.HasPrefix(r.Source, "/") && e.step == stepCreate
	switch errno, _ := errors.AsType[unix.Errno](e.err); errno {
	case unix.EINVAL:
		if device && len(e.log) == 0 {
			return ErrWrongFilesystem
		}
		return ErrBadOption
	case unix.ENODEV:
		return ErrNoFilesystem
	case unix.ENOENT, unix.ENOTDIR:
		return ErrNoSource
	case unix.EACCES:
		if device {
			return ErrReadOnlyDevice // the VFS's word for a device that cannot be written
		}
	case unix.ENOMEDIUM:
		return ErrNoSource
	case unix.EOPNOTSUPP:
		return ErrBadOption
	}
	return causeOf(e.err)
}

// explainSource says why what is to be bound cannot be.
func (n *native) explainSource(err error) error {
	failure := &kernelError{step: stepBind, err: &os.PathError{Op: "open_tree", Path: n.request.Source, Err: err}}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return &causedError{ErrNoSource, failure}
	case errors.Is(err, unix.EINVAL):
		return n.explainUncopied(failure)
	}
	return lackingOrDenied(failure)
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
	if e, tableErr := mountWithID(n.table, at.mount); tableErr == nil && len(e.Propagation) > 0 && e.Propagation[len(e.Propagation)-1] == "unbindable" {
		return &causedError{ErrNotPermitted, fmt.Errorf("the mount at %s is unbindable: %w", e.Target, err)}
	}
	if n.options.Recursive {
		return err
	}
	return &causedError{ErrNotPermitted, fmt.Errorf("the mounts below it are locked by the namespace that they came from, bind them along with rbind: %w", err)}
}

// explainAttach says why a mount cannot be attached: the kernel says EINVAL
// where mount(2) would have told the kinds apart.
func (n *native) explainAttach(mount int, err error) error {
	failure := &kernelError{step: stepAttach, err: err}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTDIR) {
		return failure
	}
	if made, lookErr := look(mount, ""); lookErr == nil && made.isDir() != n.at.isDir() {
		return &causedError{ErrKindMismatch, failure}
	}
	return failure
}
