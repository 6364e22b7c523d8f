package volume

import "errors"

// Cause is the reason of a failure: an error that [errors.Is] finds in a [Failure].
// Each package has constants of its own, such as nfs.ErrNotAllowed.
type Cause string

func (c Cause) Error() string { return string(c) }

// Failure is one failure or refusal. It says what happened, to which volume,
// claim or path, and what to do next. Callers ask for its cause with [errors.Is].
type Failure struct {
	// Cause is the reason. errors.Is finds it, and the errors that it wraps.
	Cause error
	// Subject is the volume, claim, path or server of the failure, as What names
	// it.
	Subject string
	// What says what happened, as a clause.
	What string
	// Next says what to do about it, as a clause; empty: there is nothing to do.
	Next string
	// Err is the error behind the failure, if there is one. What includes its
	// text.
	Err error
}

func (e *Failure) Error() string {
	if e.Next == "" {
		return e.What
	}
	return e.What + "; " + e.Next
}

// Advice returns Next.
func (e *Failure) Advice() string { return e.Next }

// Is makes errors.Is find Cause.
func (e *Failure) Is(target error) bool { return errors.Is(e.Cause, target) }

// Unwrap returns Err.
func (e *Failure) Unwrap() error { return e.Err }
