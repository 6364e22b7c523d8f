package volume

import (
	"errors"
	"time"
)

// RetryAtError is an error that knows the time of the next useful attempt.
// errors.AsType finds it. A plugin whose server does not answer need not be
// called before that time. The volume manager takes that time for its next retry,
// within the bounds of its own back-off. Another reason for an attempt still
// counts at once. Absent: the back-off grows with every failure.
type RetryAtError interface {
	error
	// RetryAt is the time from which on another attempt is useful. It may be in
	// the past.
	RetryAt() time.Time
}

// RetryAt returns the time from which on another attempt is useful, and whether
// err knows it. Of several errors the first that knows counts.
func RetryAt(err error) (time.Time, bool) {
	if e, ok := errors.AsType[RetryAtError](err); ok {
		return e.RetryAt(), true
	}
	return time.Time{}, false
}
