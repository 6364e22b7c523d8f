package drivers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/podvol/podvol/volume"
)

// Causes of failures. [errors.Is] finds them.
const (
	// ErrNotRegistered: no driver of this name is known on the node.
	ErrNotRegistered = Cause("the CSI driver is not registered")
	// ErrUnreachable: the driver's socket refuses, or nobody greets there. No call was
	// sent.
	ErrUnreachable = Cause("the CSI driver does not answer at its socket")
	// ErrOtherDriver: another driver than the configured one answers at a socket.
	ErrOtherDriver = Cause("another CSI driver answers at the socket")
	// ErrNoAnswer: a call may have been done, or may be going on.
	ErrNoAnswer = Cause("the CSI driver has not answered for certain")
	// ErrRefused: the driver answered that it has not done a call.
	ErrRefused = Cause("the CSI driver has refused")
	// ErrNoController: the driver has no Controller service, or that does not offer the
	// call.
	ErrNoController = Cause("the CSI driver's controller does not do this")
	// ErrStagedElsewhere: the volume is staged below another root directory.
	ErrStagedElsewhere = Cause("the volume is staged below another root directory of this machine")
	// ErrNotAttached: the volume is not attached to this node yet, or no more.
	ErrNotAttached = Cause("the volume is not attached to this node")
	// ErrUnidentified: nothing says of which driver a volume on disk is.
	ErrUnidentified = Cause("the volume's driver and handle are not known")
)

// Cause is the cause of a failure, with a word for other programs.
type Cause string

func (c Cause) Error() string { return string(c) }

// CauseWord implements [volume.WordedCause].
func (c Cause) CauseWord() string {
	switch c {
	case ErrNotRegistered:
		return "DriverNotRegistered"
	case ErrUnreachable:
		return "DriverUnreachable"
	case ErrOtherDriver:
		return "OtherDriver"
	case ErrNoAnswer:
		return "DriverNoAnswer"
	case ErrRefused:
		return "DriverRefused"
	case ErrNoController:
		return "DriverNoController"
	case ErrStagedElsewhere:
		return "StagedElsewhere"
	case ErrNotAttached:
		return "NotAttached"
	case ErrUnidentified:
		return "Unidentified"
	}
	return ""
}

// isDoubtful is the table of codes after which a call may have been done, or may be
// going on: the kubelet's.
func isDoubtful(err error) bool {
	s, ok := status.FromError(err)
	if !ok {
		return true
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return true
	}
	return false
}

// failedCall is the error of a call that was sent with secrets of its own. No secret that was
// sent is in it.
func (d *Set) failedCall(method, driver, volumeID string, err error, own ...string) error {
	s := status.Convert(err)
	clean := status.New(s.Code(), d.redactFor(own, s.Message()))
	f := &volume.Failure{Cause: ErrRefused, Subject: cmp.Or(volumeID, driver), Err: clean.Err(), Next: "see the driver's log"}
	if isDoubtful(err) {
		f.Cause, f.Next = ErrNoAnswer, "the call may have been done or may be going on; it is tried again"
	}
	if s.Code() == codes.Unimplemented {
		f.Next = "see whether the socket is a CSI driver's, with the Node service"
	}
	f.What = fmt.Sprintf("driver %s answers %v to %s%s: %s", driver, s.Code(), method, ofVolume(volumeID), clean.Message())
	return f
}

func ofVolume(id string) string {
	if id == "" {
		return ""
	}
	return fmt.Sprintf(" of volume %.128q", id)
}

// abandonedCall is the error of a call that the caller did not wait for: it was stopped, or
// needs the answer no more. The driver has said nothing.
func abandonedCall(c Call, why, failure error) error {
	because := ""
	if why != context.Canceled {
		because = " (" + Redact(why.Error(), nil) + ")"
	}
	return &volume.Failure{Cause: ErrNoAnswer, Subject: cmp.Or(c.Volume, c.Driver.Name), Err: failure,
		What: fmt.Sprintf("the wait for driver %s was ended%s, and its call %s%s was still under way", c.Driver.Name, because, c.Method, ofVolume(c.Volume)),
		Next: "the driver may go on with it; what is known is on disk, and the driver is asked again, after a stop at the next start"}
}

// endedWith adds the end of a caller's context to the error of a call that ended with it: a
// driver may tell of the deadline before the caller's own clock does.
func endedWith(caller context.Context, err error) error {
	if IsRefusal(err) {
		return err
	}
	if why := context.Cause(caller); why != nil {
		return &endedCall{err, why}
	}
	if deadline, has := caller.Deadline(); has && status.Code(err) == codes.DeadlineExceeded && time.Until(deadline) <= 0 {
		return &endedCall{err, context.DeadlineExceeded}
	}
	return err
}

// endedCall reads like its error, and matches why the caller's context ended too.
type endedCall struct{ err, why error }

func (e *endedCall) Error() string   { return e.err.Error() }
func (e *endedCall) Unwrap() []error { return []error{e.err, e.why} }

// IsRefusal reports whether the driver has answered that nothing was done.
func IsRefusal(err error) bool { return errors.Is(err, ErrRefused) }

func notRegistered(name string, known []string) error {
	next := "start the driver on this node"
	if len(known) > 0 {
		next += "; those that are known: " + strings.Join(known, ", ")
	}
	return &volume.Failure{Cause: ErrNotRegistered, Subject: name, What: fmt.Sprintf("no CSI driver %.128q is registered on this node", name), Next: next}
}
