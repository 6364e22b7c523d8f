package mount

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/fstypes"
	"github.com/podvol/podvol/util/blockingcall"
)

// The operations named by [Error].Op.
const (
	OpMount   = "mount"
	OpUnmount = "unmount"
	// OpMeasure is a measurement of a mounted file system for metrics. Plugins
	// use it.
	OpMeasure = "measure"
)

// Error is a failed mount or unmount. It has the request, the messages of the
// kernel or the command, and the reason. It also says whether the operation may
// have taken effect all the same. Sensitive options are masked in every field.
//
// errors.Is finds the [Cause], the causes in Also and the wrapped error. So
// errors.Is(err, mount.ErrHelperMissing) and errors.Is(err, unix.EBUSY) both work
// if they apply.
type Error struct {
	// Op is [OpMount], [OpUnmount] or [OpMeasure].
	Op string
	// Source, Target, FSType and Options come from the request, sensitive options
	// masked.
	Source, Target, FSType string
	Options                []string
	// Kernel is the kernel's own message, if it gave one: the lines of the file
	// system context's log (fsopen(2)), joined by "; ".
	Kernel string
	// Option is the refused option, if the kernel or the command named it; a
	// sensitive one is masked.
	Option string
	// Capability is the capability that the caller lacks, if the cause is
	// [ErrNotPermitted] and it is known: "CAP_SYS_ADMIN", or
	// "CAP_DAC_READ_SEARCH" if the caller may not enter a directory on the way.
	Capability string
	// Command is the command line that was run, if any, sensitive options masked.
	// Output is its output.
	Command, Output string
	// Cause classifies the failure; [ErrUnknown] if nothing is known.
	Cause Cause
	// Holders are processes that keep a busy mount in use, at most ten, if
	// [UnmountOptions].Holders asked for them.
	Holders []Holder
	// Also are further causes beside Cause. An example is a node that lacks both
	// the helper and the kernel's part of a file system.
	Also []Cause
	// Distribution is the node's distribution, if the advice names a package: ID
	// and then ID_LIKE of os-release(5); empty: not known.
	Distribution []string
	// Uncertain says that the operation may have taken effect, or may still do
	// so.
	Uncertain bool
	// Err is the underlying error.
	Err error
}

// Error returns one line with the failed operation and the reason. If a command
// was run, its end, itself and its output follow in the kubelet's words ("mount
// failed: exit status 32", "Mounting command: …"). The advice comes last.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.summary())
	if e.Command != "" {
		if e.Err != nil {
			fmt.Fprintf(&b, "\n%s failed: %v", e.Op, e.Err)
		}
		command, arguments, _ := strings.Cut(e.Command, " ")
		noun := "Mounting"
		if e.Op == OpUnmount {
			noun = "Unmounting"
		}
		fmt.Fprintf(&b, "\n%s command: %s\n%s arguments: %s\nOutput: %s", noun, command, noun, arguments, strings.TrimSpace(e.Output))
	}
	if advice := e.Advice(); advice != "" {
		b.WriteString("\n" + advice)
	}
	return b.String()
}

func (e *Error) summary() string {
	what := e.Target
	if e.Source != "" {
		what = e.Source + " on " + e.Target
	}
	if e.FSType != "" {
		what = e.FSType + " " + what
	}
	text := fmt.Sprintf("%s %s failed", e.Op, what)
	if e.Cause != ErrUnknown && e.Cause != "" {
		text += ": " + e.Cause.Error()
	}
	for _, c := range e.Also {
		text += ", and " + c.Error()
	}
	if e.Option != "" {
		text += fmt.Sprintf(" %q", e.Option)
	}
	if e.Capability != "" {
		text += ", for lack of " + e.Capability
	}
	if e.Command == "" && e.Err != nil && e.Err.Error() != e.Cause.Error() {
		text += ": " + e.Err.Error()
	}
	if e.Kernel != "" {
		text += " (kernel: " + e.Kernel + ")"
	}
	if len(e.Holders) > 0 {
		text += "; held by " + heldBy(e.Holders)
	}
	if e.Uncertain {
		text += "; it may still take effect"
	}
	return text
}

// Unwrap returns the causes and the underlying error.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.Cause != "" {
		errs = append(errs, e.Cause)
	}
	for _, c := range e.Also {
		errs = append(errs, c)
	}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}

// Advice returns one or two sentences about the next step of the node's owner. It
// is empty if there is no useful advice.
func (e *Error) Advice() string {
	var sentences []string
	for _, c := range append([]Cause{e.Cause}, e.Also...) {
		if sentence := c.advice(e); sentence != "" {
			sentences = append(sentences, sentence)
		}
	}
	return strings.Join(sentences, " ")
}

// MaskedOptions returns Options, and one masked word if there are sensitive ones. The
// caller owns the slice.
func (r Request) MaskedOptions() []string {
	options := append([]string(nil), r.Options...)
	if len(r.Sensitive) > 0 {
		options = append(options, masked)
	}
	return options
}

// Failed makes the *Error of a failed mount of the request, masked. nil stays nil, and an *Error
// is left as it is: a mounter may give the same one to several callers.
func (r Request) Failed(err error) error {
	if err == nil {
		return nil // at once: most mounts do not fail
	}
	if given, ok := errors.AsType[*Error](err); ok {
		return given
	}
	e := Error{Op: OpMount, Source: r.Source, Target: r.Target, FSType: r.FSType, Options: r.MaskedOptions()}
	if said, ok := errors.AsType[*failure.Kernel](err); ok {
		e.Kernel = r.Mask(message(said.Lines))
		e.Cause, e.Option = causeOfKernel(r, said.Err, said.Lines)
		e.Option = r.Mask(e.Option)
		return Explain(err, e)
	}
	failure := Explain(err, e)
	if own, ok := errors.AsType[*Error](failure); ok && own.Cause == ErrBadOption && own.Option == "" && KnownCause(err) == "" {
		own.Option = r.MaskOption(OptionIn(err.Error())) // a mounter that runs mount(8)
	}
	return failure
}

// NotBegun is [Request.Failed] for errors that say that nothing was begun: the result
// is not Uncertain.
func (r Request) NotBegun(err error) error { return Certain(r.Failed(err)) }

// UnmountFailed makes the *[Error] of a failed unmount of target. nil stays nil, and an
// *Error is left as it is.
func UnmountFailed(target string, err error) error {
	return Explain(err, Error{Op: OpUnmount, Target: target})
}

// Explain makes an *[Error] of err: known, with err, and with the cause that err tells if
// known has none. nil stays nil, and an *Error is left as it is. Authors of mounters use
// it where [Request.Failed] and [UnmountFailed] do not say enough.
func Explain(err error, known Error) error {
	e := known
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	e.Err = err
	if cause := KnownCause(err); cause != "" {
		e.Cause, e.Option = cause, ""
	} else if e.Cause == "" {
		e.Cause = CauseOf(err)
	}
	if e.Op == OpUnmount {
		var also []Cause
		e.Cause, also = causeOfUnmount(err, e.Cause)
		e.Also = append(e.Also, also...)
	}
	if e.Cause == ErrHelperMissing && !fstypes.WantsHelper(e.FSType) {
		e.Cause = WithoutHelper(Request{Source: e.Source, FSType: e.FSType})
	}
	e.Uncertain = leavesDoubt(err)
	return &e
}

// leavesDoubt tells errors after which the call may yet take effect.
func leavesDoubt(err error) bool {
	if _, ok := errors.AsType[*blockingcall.AbandonedError](err); ok {
		return !nothingBegun(err)
	}
	if _, ok := errors.AsType[*failure.HalfDone](err); ok {
		return true
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// nothingBegun tells a call for which its context had ended too early.
func nothingBegun(err error) bool {
	abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err)
	return ok && !abandoned.Started && !abandoned.Earlier
}

// causeOfUnmount corrects a cause for what errnos mean to umount2(2): a missing
// target is not mounted either.
func causeOfUnmount(err error, cause Cause) (Cause, []Cause) {
	if failure.HasCause(err) {
		return cause, nil
	}
	switch {
	case errors.Is(err, syscall.EINVAL):
		return ErrNotMounted, nil
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		return ErrNoTarget, []Cause{ErrNotMounted}
	}
	return cause, nil
}

// Certain takes Uncertain back in an *[Error], and returns it. Any other error it returns
// as it is.
func Certain(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		e.Uncertain = false
	}
	return err
}

// Holder is one user of a mount: a process, or the kernel itself.
type Holder struct {
	// PID is the process, by this process's /proc; 0 stands for the kernel, as
	// with a mount below.
	PID int
	// Command is the process's name, as ps(1) shows it; "kernel" for PID 0.
	Command string
	// How says by which means: "working directory /mnt/a", "root directory
	// /mnt/a", "program /mnt/a/bin/x", "open file /mnt/a/x", "mapped file
	// /mnt/a/lib.so", "mount below at /mnt/a/b", "swap file /mnt/a/s", "loop
	// device loop0 on /mnt/a/disk.img". Paths are as the process sees them.
	How string
}

func (h Holder) String() string { return fmt.Sprintf("%s (%d): %s", h.Command, h.PID, h.How) }

// heldBy lists holders in a sentence.
func heldBy(holders []Holder) string {
	var all []string
	for _, h := range holders {
		all = append(all, h.String())
	}
	return strings.Join(all, "; ")
}
