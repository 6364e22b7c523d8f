package volume

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Error is a failed operation on a volume of a pod. It names the volume and the
// pod. Err is the reason.
type Error struct {
	// Op is the method that failed, by the interface's name: "SetUp", "TearDown",
	// ….
	Op string
	// Plugin is the plugin's name. Volume is the volume's name in the pod, or the
	// PersistentVolume's name.
	Plugin, Volume string
	// Pod is the pod's namespace and name, if known.
	Pod types.NamespacedName
	// PodUID is the pod's UID, if known.
	PodUID types.UID
	// Err is the reason.
	Err error
}

// About returns a copy of e with the cause err. If err is itself an [*Error], which names
// the volume by its spec, the copy takes its operation and its cause. One that err wraps,
// or joins with others, does not count: the text around it would be lost.
func (e *Error) About(err error) *Error {
	named := *e
	named.Err = err
	if own, ok := errors.AsType[*Error](err); ok && error(own) == err {
		named.Op, named.Err = own.Op, own.Err
	}
	return &named
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Volume != "" {
		fmt.Fprintf(&b, " of volume %q", e.Volume)
	}
	if e.Plugin != "" {
		fmt.Fprintf(&b, " (%s)", e.Plugin)
	}
	switch {
	case e.Pod.Name != "":
		fmt.Fprintf(&b, " for pod %q", e.Pod.String())
	case e.PodUID != "":
		fmt.Fprintf(&b, " for the pod with UID %q", e.PodUID)
	}
	fmt.Fprintf(&b, " failed: %v", e.Err)
	return b.String()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// NothingDone marks err: the failed operation left the node as it was. An error
// without the mark counts as uncertain. Its volume is torn down like a mounted
// one. NothingDone(nil) is nil.
func NothingDone(err error) error {
	if err == nil || !IsUncertain(err) {
		return err
	}
	return &nothingDoneError{err}
}

type nothingDoneError struct{ error }

func (e *nothingDoneError) Unwrap() error { return e.error }

// IsUncertain reports whether an operation that returned err may have left
// something behind. It is true unless err is nil or carries the mark of
// [NothingDone]. The mark holds through wrapping. An error may wrap several, as
// [errors.Join] and fmt.Errorf with several %w do. Then each of them must carry
// the mark: one attempt that left nothing says nothing of another.
func IsUncertain(err error) bool { return err != nil && !marked(err) }

// marked is no errors.As, because errors.As finds one marked error among several.
func marked(err error) bool {
	switch e := err.(type) {
	case *nothingDoneError:
		return true
	case interface{ Unwrap() []error }:
		wrapped := e.Unwrap()
		return len(wrapped) > 0 && !slices.ContainsFunc(wrapped, IsUncertain)
	case interface{ Unwrap() error }:
		return marked(e.Unwrap())
	}
	return false
}

// InvalidSpecError says that a volume or pod was refused before anything was
// changed.
type InvalidSpecError struct {
	// Field is the path of the offending field as the manifest spells it, such
	// as "nfs.server".
	Field string
	// Reason says why the field is wrong and which values are right.
	Reason string
	// Volume is the volume's name in the pod. Pod is the pod's namespace and
	// name. Both are empty if the field belongs to none, or if the caller knows
	// them.
	Volume string
	Pod    types.NamespacedName
}

func (e *InvalidSpecError) Error() string {
	return fmt.Sprintf("invalid %s%s: %s", e.Field, e.owner(), e.Reason)
}

func (e *InvalidSpecError) owner() string {
	switch {
	case e.Volume != "" && e.Pod.Name != "":
		return fmt.Sprintf(" (volume %q of pod %q)", e.Volume, e.Pod.String())
	case e.Volume != "":
		return fmt.Sprintf(" (volume %q)", e.Volume)
	case e.Pod.Name != "":
		return fmt.Sprintf(" (pod %q)", e.Pod.String())
	}
	return ""
}

// Invalid returns an *[InvalidSpecError] marked with [NothingDone].
func Invalid(field, format string, args ...any) error {
	return NothingDone(&InvalidSpecError{Field: field, Reason: fmt.Sprintf(format, args...)})
}

// ErrNotFound says that an object does not exist. A failed look-up is another
// error. Roles and object sources return errors that match it.
var ErrNotFound = errors.New("not found")

// ErrInUse says that a volume's data is still in use. Errors of Recycle and
// Delete match it. Nothing is wrong: the volume is reclaimed once the use has
// ended.
var ErrInUse = errors.New("the volume is still in use")

// ErrAttachLimitExceeded says that a volume cannot be attached since the node can have no more
// volumes of its driver. Only the end of another pod helps, so that an agent rejects the pod, as
// the kubelet does since 1.35, with the reason [AttachLimitExceeded].
const ErrAttachLimitExceeded Cause = "the node cannot have more volumes of this driver"

// AttachLimitExceeded is the reason in the status of a pod that is rejected for
// [ErrAttachLimitExceeded].
const AttachLimitExceeded = "VolumeAttachmentLimitExceeded"

// ObjectNotFoundError names the object that does not exist. It matches
// [ErrNotFound].
type ObjectNotFoundError struct{ Ref ObjectRef }

func (e *ObjectNotFoundError) Error() string { return e.Ref.String() + " not found" }

// Is makes errors.Is(err, ErrNotFound) true.
func (e *ObjectNotFoundError) Is(target error) bool { return target == ErrNotFound }

// Cause is the reason of a failure: an error that [errors.Is] finds in a [Failure].
// Each package has constants of its own, such as nfs.ErrNotAllowed.
type Cause string

func (c Cause) Error() string { return string(c) }

// WordedCause is the cause of a [Failure] that has one word for other programs, which does not
// change: the manager's Explain has it in its JSON. Absent: the manager knows the word of causes
// of its own, or it is Unknown.
type WordedCause interface {
	error
	CauseWord() string
}

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

// As makes [errors.As] find a Cause that is a [WordedCause].
func (e *Failure) As(target any) bool {
	to, wanted := target.(*WordedCause)
	cause, has := e.Cause.(WordedCause)
	if wanted && has {
		*to = cause
	}
	return wanted && has
}

// Unwrap returns Err.
func (e *Failure) Unwrap() error { return e.Err }

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
