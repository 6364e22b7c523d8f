// Package failure has the errors by which the engines of mount tell its contract what
// they know of a failure: its cause, the kernel's words, and whether a part has taken
// effect. [mount.Explain] makes a *mount.Error of them.
package failure

import (
	"errors"
	"fmt"
)

// Caused is an error with its cause, a mount.Cause.
type Caused struct {
	Cause error
	Err   error // nil: the cause says it all
}

// Of returns a *[Caused]. err may be nil.
func Of(cause, err error) error { return &Caused{Cause: cause, Err: err} }

func (e *Caused) Error() string {
	if e.Err == nil {
		return e.Cause.Error()
	}
	return e.Err.Error()
}

// Unwrap leaves the cause out: only *mount.Error has it, beside what it adds.
func (e *Caused) Unwrap() error { return e.Err }

// HasCause reports whether an error has a cause.
func HasCause(err error) bool {
	_, ok := errors.AsType[*Caused](err)
	return ok
}

// HalfDone is a mount, or a change of one, that failed after a part of it had taken
// effect. The part could not be undone.
type HalfDone struct{ Err, UndoErr error }

// WithoutUndo returns a *[HalfDone].
func WithoutUndo(err, undoErr error) error { return &HalfDone{Err: err, UndoErr: undoErr} }

func (e *HalfDone) Error() string {
	return fmt.Sprintf("%v; and what was done is not undone: %v", e.Err, e.UndoErr)
}

func (e *HalfDone) Unwrap() error { return e.Err }

// Kernel is a failed system call of a mount, with the kernel's words.
type Kernel struct {
	// Call is its name: "fsconfig", "move_mount".
	Call string
	// Lines are from the log of the file system context (fsopen(2)), with or without
	// their leading "e ", "w " or "i ". They may hold secrets.
	Lines []string
	Err   error
}

// Error leaves the lines out, as they may hold secrets. mount.Error.Kernel has them,
// masked.
func (e *Kernel) Error() string { return fmt.Sprintf("%s: %v", e.Call, e.Err) }

func (e *Kernel) Unwrap() error { return e.Err }
