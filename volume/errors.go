package volume

import (
	"errors"
	"fmt"
	"slices"
	"strings"

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

// ObjectNotFoundError names the object that does not exist. It matches
// [ErrNotFound].
type ObjectNotFoundError struct{ Ref ObjectRef }

func (e *ObjectNotFoundError) Error() string { return e.Ref.String() + " not found" }

// Is makes errors.Is(err, ErrNotFound) true.
func (e *ObjectNotFoundError) Is(target error) bool { return target == ErrNotFound }
