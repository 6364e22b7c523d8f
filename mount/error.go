package mount

import (
	"fmt"
	"strings"
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
