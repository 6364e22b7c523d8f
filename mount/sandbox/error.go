package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Cause is why a sandbox could not be made. Test for one with errors.Is.
type Cause string

// The causes.
const (
	// ErrUnknown: none of the others.
	ErrUnknown Cause = "unknown cause"
	// ErrConfig: the Config contradicts itself.
	ErrConfig Cause = "the sandbox is not described correctly"
	// ErrKernelTooOld: a system call is missing (ENOSYS), or a filter of system
	// calls denies it as if it were.
	ErrKernelTooOld Cause = "the kernel is too old"
	// ErrNotPermitted: EPERM or EACCES.
	ErrNotPermitted Cause = "not permitted"
	// ErrNoNamespace: the kernel makes no new namespace for this caller.
	ErrNoNamespace Cause = "no new namespace is to be had"
	// ErrNoIDs: the ids of the user namespace cannot be mapped.
	ErrNoIDs Cause = "the ids cannot be mapped into the user namespace"
	// ErrNoSource: the source of a mount, or the root, does not exist.
	ErrNoSource Cause = "the source does not exist"
	// ErrNoMountPoint: the destination does not exist and cannot be made without
	// changing other users' files.
	ErrNoMountPoint Cause = "the mount point does not exist"
	// ErrLink: a link is in the way where none may be, or leads nowhere.
	ErrLink Cause = "a link is in the way"
	// ErrKindMismatch: a file was to be mounted on a directory, or the reverse.
	ErrKindMismatch Cause = "source and mount point are not both directories or both files"
	// ErrNotShared: a Bidirectional mount whose source is not shared on the host.
	ErrNotShared Cause = "the source is not in a shared mount"
	// ErrPropagates: the mount would appear on the host and stay there.
	ErrPropagates Cause = "the mount would stay on the host"
	// ErrIDMap: the idmapped mount cannot be made.
	ErrIDMap Cause = "the volume cannot be shown with other owners"
	// ErrRoot: the root cannot be exchanged, as where the caller is in a
	// chroot(2).
	ErrRoot Cause = "the root cannot be exchanged"
	// ErrProgramNotFound and ErrProgram: there is no such program, and it cannot
	// be executed.
	ErrProgramNotFound Cause = "the program was not found"
	ErrProgram         Cause = "the program cannot be executed"
	// ErrDied: the child ended before it could begin the program, as when
	// it was killed, or a signal ended the launch: see [Error].Signal.
	ErrDied Cause = "the sandbox ended before its program began"
)

func (c Cause) Error() string { return string(c) }

// Error is a sandbox that could not be made, or a program that could not be
// begun. Nothing of it is left.
type Error struct {
	// Op is the step that failed, as "resolve the destination".
	Op string
	// Volume and Destination name the mount that failed; both are empty where it was
	// none.
	Volume, Destination string
	// Path is the path that it failed for, where that is another.
	Path string
	// Cause classifies it.
	Cause Cause
	// Signal is, with ErrDied, the signal that ended it; 0: none.
	Signal syscall.Signal
	// Advice says what to do; it may be empty.
	Advice string
	// Err is the underlying error. Of one that happened in the child only the
	// text and the errno have come over.
	Err error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("sandbox: ")
	if e.Destination != "" {
		if e.Volume != "" {
			fmt.Fprintf(&b, "volume %q ", e.Volume)
		}
		fmt.Fprintf(&b, "at %s: ", e.Destination)
	}
	b.WriteString(e.Op)
	if e.Path != "" && e.Path != e.Destination {
		b.WriteString(" " + e.Path)
	}
	if e.Cause != "" && e.Cause != ErrUnknown {
		b.WriteString(": " + e.Cause.Error())
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	if e.Advice != "" {
		b.WriteString("; " + e.Advice)
	}
	return b.String()
}

// Unwrap returns the cause and the underlying error.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.Cause != "" {
		errs = append(errs, e.Cause)
	}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}

// ExitCode is what a shell, or docker run, would exit with: 127 for a program
// that was not found, 126 for one that cannot be executed, 128+n where signal n
// ended it, and 125 for all else.
func (e *Error) ExitCode() int {
	if e.Signal != 0 {
		return 128 + int(e.Signal)
	}
	switch e.Cause {
	case ErrProgramNotFound:
		return 127
	case ErrProgram:
		return 126
	}
	return 125
}

const (
	adviceMain   = "main must call sandbox.Main before anything else"
	adviceKernel = "this needs Linux 5.12, and no filter of system calls that denies openat2, open_tree, move_mount and mount_setattr"
	adviceUserNS = "run it as root, or allow user namespaces: user.max_user_namespaces, kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns (sysctl) decide"
)

// failed makes the *Error of a system call from its errno.
func failed(op, path string, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	e := &Error{Op: op, Path: path, Cause: ErrUnknown, Err: err}
	switch {
	case errors.Is(err, unix.ENOSYS):
		e.Cause, e.Advice = ErrKernelTooOld, adviceKernel
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		e.Cause = ErrNotPermitted
	}
	return e
}

// as is failed with a cause that is known.
func as(cause Cause, op, path string, err error) *Error {
	return &Error{Op: op, Path: path, Cause: cause, Err: err}
}

// died is for a child, or a helper, that a signal ended.
func died(op string, signal os.Signal) *Error {
	e := as(ErrDied, op, "", fmt.Errorf("signal: %v", signal))
	e.Signal, _ = signal.(syscall.Signal)
	if e.Signal == unix.SIGKILL {
		e.Advice = "the kernel's log may say what was killed, as for want of memory"
	}
	return e
}
