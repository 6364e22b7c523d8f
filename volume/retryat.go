package volume

import (
	"errors"
	"time"
)

// RetryAtError is an error that says when another attempt makes sense, found
// with errors.AsType: a plugin that knows that a server does not answer need
// not be asked again before. The volume manager takes it for its own pause after
// a failure, within that pause's bounds; another reason to try still counts at
// once. Absent: the pause grows with every failure.
type RetryAtError interface {
	error
	// RetryAt is the time from which on another attempt makes sense; it may
	// have passed already.
	RetryAt() time.Time
}

// RetryAt returns when err says that another attempt makes sense, and whether
// it does; of several errors, the first that does counts.
func RetryAt(err error) (time.Time, bool) {
	if e, ok := errors.AsType[RetryAtError](err); ok {
		return e.RetryAt(), true
	}
	return time.Time{}, false
}
