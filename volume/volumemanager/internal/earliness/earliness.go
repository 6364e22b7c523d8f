// Package earliness knows which first set-ups of volumes came too early for the API server.
package earliness

import (
	"errors"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
)

const (
	// earlyFor is how long the first set-up of a volume may be too early.
	earlyFor = 5 * time.Second
	// The pauses between its attempts.
	firstEarlyPause = 100 * time.Millisecond
	lastEarlyPause  = time.Second
)

// Earliness decides whether the first set-up of a volume was too early. An API server lets a
// node read what a pod names once its authorizer has seen the pod, and that is a moment after
// the node has. A node that is faster is refused, though nothing is wrong.
type Earliness struct {
	until time.Time // zero: it is no first set-up
	// Pause is waited between the attempts.
	Pause retry.Pause
}

// New returns the decision about a set-up that begins now. Only a first one can be too early.
func New(first bool) *Earliness {
	e := &Earliness{Pause: retry.Pause{First: firstEarlyPause, Last: lastEarlyPause}}
	if first {
		e.until = time.Now().Add(earlyFor)
	}
	return e
}

// MayRetry reports whether err may be gone in a moment. What an attempt may have left behind
// is torn down as after any failure.
func (e *Earliness) MayRetry(err error) bool {
	return time.Now().Before(e.until) && isEarly(err) && !volume.IsUncertain(err)
}

// statusError is an answer of the API server, such as apimachinery's StatusError.
type statusError interface {
	error
	Status() metav1.Status
}

// isEarly reports whether the API server has refused a read, or a token since it does not
// know the pod or its account.
func isEarly(err error) bool {
	answer, ok := errors.AsType[statusError](err)
	if !ok {
		return false
	}
	switch s := answer.Status(); s.Reason {
	case metav1.StatusReasonForbidden:
		return true
	case metav1.StatusReasonNotFound:
		return s.Details != nil && slices.Contains([]string{"pods", "serviceaccounts"}, s.Details.Kind)
	}
	return false
}
