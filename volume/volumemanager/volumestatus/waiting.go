package volumestatus

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"
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
