package vmtest

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrUnavailable: this host lacks what a machine needs; the error says what.
	ErrUnavailable = errors.New("no virtual machine can be started here")
	// ErrDied: the machine ended without the command's result, as by a kernel
	// panic or the kernel's running out of memory.
	ErrDied = errors.New("the virtual machine ended before its command")
	// ErrPoweredOff: the machine was shut down before the command had ended. It
	// comes with ErrDied.
	ErrPoweredOff = errors.New("it was powered off")
	// ErrBoot: the machine did not come as far as to start the command.
	ErrBoot = errors.New("the virtual machine did not start the command")
)

// Error says why a machine gave no result. Err is or wraps one of the errors
// above, or the context's.
type Error struct {
	// Console is the end of what the machine's kernel has printed, Monitor what
	// QEMU has.
	Console, Monitor string
	Err              error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Err.Error())
	for _, part := range []struct{ title, text string }{{"QEMU says", e.Monitor}, {"the console's last lines", e.Console}} {
		if text := strings.TrimSpace(part.text); text != "" {
			fmt.Fprintf(&b, "\n%s:\n%s", part.title, text)
		}
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }
