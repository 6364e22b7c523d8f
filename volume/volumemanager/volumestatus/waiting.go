package volumestatus

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
)

// PendingError says what a volume was waiting for when a caller's patience
// ended. The declaration stays.
type PendingError struct {
	Pod    types.NamespacedName
	Volume string
	// Waits says what for.
	Waits string
	// Last is the error of the last attempt, if one has failed.
	Last error
	// Attachment is the report that it was waiting for, if it was for one.
	Attachment *AttachmentError
	// Cause is why the wait ended.
	Cause error
}

func (e *PendingError) Error() string {
	text := fmt.Sprintf("volume %q of pod %s: %v while waiting for %s", e.Volume, e.Pod, e.Cause, e.Waits)
	if e.Last != nil {
		text += fmt.Sprintf("; the last attempt failed: %v", e.Last)
	}
	return text
}

// Unwrap returns the cause, the last attempt's error and the attachment's.
func (e *PendingError) Unwrap() []error {
	errs := []error{e.Cause}
	if e.Last != nil {
		errs = append(errs, e.Last)
	}
	if e.Attachment != nil {
		errs = append(errs, e.Attachment)
	}
	return errs
}

// Pending turns the row of a volume that a caller stopped waiting for into one
// that says so; otherwise is what it waits for if the row does not say it.
func Pending(row Status, cause error, otherwise string) Status {
	e := &PendingError{Pod: row.Pod, Volume: row.Volume, Last: row.Err, Cause: cause}
	e.Waits, e.Attachment = row.waitsFor(otherwise)
	row.State, row.Err = StatePending, e
	return row
}

// waitsFor says what the volume waits for, and the report about its attachment
// if it is that.
func (s Status) waitsFor(otherwise string) (string, *AttachmentError) {
	switch {
	case s.Operation != "":
		return fmt.Sprintf("its %s of %s, under way for %s", s.Operation, s.Source, time.Since(s.Began).Round(time.Millisecond)), nil
	case s.Attachment != nil && !s.Attachment.Mounted:
		return s.Attachment.waits(), s.Attachment
	case !s.NextRetry.IsZero():
		return fmt.Sprintf("the next attempt in %s", time.Until(s.NextRetry).Round(time.Millisecond)), nil
	}
	if e, ok := errors.AsType[*claimbinding.Error](s.Err); ok && s.Wanted && errors.Is(e, claimbinding.ErrUnbound) {
		return fmt.Sprintf("claim %s to be bound", e.Claim), nil
	}
	return otherwise, nil
}

// NotMountedError says why a volume cannot be shown to a container yet.
type NotMountedError struct {
	// Waits says what the volume waits for.
	Waits string
	// Last is the error of the last attempt, if one has failed.
	Last error
	// Attachment is the report that it waits for, if it waits for one.
	Attachment *AttachmentError
}

func (e *NotMountedError) Error() string {
	text := "it is not mounted, but waits for " + e.Waits
	if e.Last != nil {
		text += fmt.Sprintf("; the last attempt failed: %v", e.Last)
	}
	return text
}

// Unwrap returns the last attempt's error and the attachment's.
func (e *NotMountedError) Unwrap() (errs []error) {
	if e.Last != nil {
		errs = append(errs, e.Last)
	}
	if e.Attachment != nil {
		errs = append(errs, e.Attachment)
	}
	return errs
}

// NotMounted says what a volume waits for, of which these are the rows.
func NotMounted(rows []Status, name string) *NotMountedError {
	i := max(0, slices.IndexFunc(rows, func(r Status) bool { return r.Volume == name }))
	e := &NotMountedError{Last: rows[i].Err}
	e.Waits, e.Attachment = rows[i].waitsFor("its set-up to begin")
	if own, ok := e.Last.(*volume.Error); ok {
		e.Last = own.Err // the error around this one names the volume
	}
	return e
}

// RecoveryError says that a caller's patience ended before Run knew what volumes
// there are.
type RecoveryError struct {
	RootDir string
	// Cause is why the wait ended; it matches ErrNotRun of the manager where Run was not called.
	Cause error
}

func (e *RecoveryError) Error() string {
	return fmt.Sprintf("%v while waiting for the manager to find out which volumes are below %s", e.Cause, e.RootDir)
}

// Unwrap returns the cause.
func (e *RecoveryError) Unwrap() error { return e.Cause }
