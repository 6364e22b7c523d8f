package volumestatus

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/volumemanager/internal/oncepod"
)

// WaitsFor says what the volume waits for, beside its operation and its next retry, in a few
// words without times: a report about its attachment, its claim, an object, another pod, a file
// system that is in use, or its server. Empty: nothing is known.
func (s Status) WaitsFor() string {
	claim := ""
	if e, ok := errors.AsType[claimbinding.Waiting](s.Err); ok {
		claim = e.WaitsFor()
	}
	missing, _ := errors.AsType[*volume.ObjectNotFoundError](s.Err)
	switch {
	case s.Attachment != nil && !s.Attachment.Mounted:
		return s.Attachment.waits()
	case claim != "":
		return claim
	case errors.Is(s.Err, oncepod.ErrUsed):
		return "the other pod that has the volume to leave this node"
	case missing != nil:
		return missing.Ref.String() + " to exist"
	case s.Err == nil || s.State == StateMounted:
		return ""
	}
	if e, ok := errors.AsType[*lazyunmount.Error](s.Err); ok {
		return fmt.Sprintf("the file system that was at %s to be out of use", e.Mount.Target)
	}
	if s.ServerTrouble() != "" {
		return fmt.Sprintf("server %s to answer", s.Server.Source)
	}
	return ""
}

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
