package drivers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/podvol/podvol/volume"
)

// Causes of failures. [errors.Is] finds them.
const (
	// ErrNotRegistered: no driver of this name is known on the node.
	ErrNotRegistered = volume.Cause("the CSI driver is not registered")
	// ErrUnreachable: the driver's socket refuses, or nobody greets there. No call was
	// sent.
	ErrUnreachable = volume.Cause("the CSI driver does not answer at its socket")
	// ErrOtherDriver: another driver than the configured one answers at a socket.
	ErrOtherDriver = volume.Cause("another CSI driver answers at the socket")
	// ErrNoAnswer: a call may have been done, or may be going on.
	ErrNoAnswer = volume.Cause("the CSI driver has not answered for certain")
	// ErrRefused: the driver answered that it has not done a call.
	ErrRefused = volume.Cause("the CSI driver has refused")
	// ErrNoController: the driver has no Controller service, or that does not offer the
	// call.
	ErrNoController = volume.Cause("the CSI driver's controller does not do this")
)

// maxMessage bounds what a driver can make an error say.
const maxMessage = 2048

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

// failedCall is the error of a call that was sent. Nothing of the secret strings is in it.
func failedCall(method, driver, volumeID string, err error, secret []string) error {
	s := status.Convert(err)
	clean := status.New(s.Code(), Redact(s.Message(), secret))
	f := &volume.Failure{Cause: ErrRefused, Subject: cmp.Or(volumeID, driver), Err: clean.Err(), Next: "see the driver's log"}
	if isDoubtful(err) {
		f.Cause, f.Next = ErrNoAnswer, "the call may have been done or may be going on; it is tried again"
	}
	if s.Code() == codes.Unimplemented {
		f.Next = "see whether the socket is a CSI driver's, with the Node service"
	}
	of := ""
	if volumeID != "" {
		of = fmt.Sprintf(" of volume %.128q", volumeID)
	}
	f.What = fmt.Sprintf("driver %s answers %v to %s%s: %s", driver, s.Code(), method, of, clean.Message())
	return f
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

// Redact takes secrets and control characters out of a driver's message.
func Redact(message string, secret []string) string {
	longest := slices.SortedFunc(slices.Values(secret), func(a, b string) int { return len(b) - len(a) })
	for _, s := range longest {
		if s != "" {
			message = strings.ReplaceAll(message, s, "***")
		}
	}
	message = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(message, "?"))
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + " …"
	}
	return message
}

// IsRefusal reports whether the driver has answered that nothing was done.
func IsRefusal(err error) bool { return errors.Is(err, ErrRefused) }

func notRegistered(name string, known []string) error {
	next := "start the driver on this node"
	if len(known) > 0 {
		next += "; those that are known: " + strings.Join(known, ", ")
	}
	return &volume.Failure{Cause: ErrNotRegistered, Subject: name, What: fmt.Sprintf("no CSI driver %q is registered on this node", name), Next: next}
}
