package index

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/claimbinding"
)

// ErrWaitsForConsumer says that no volume was chosen for a claim because its
// storage class waits for the first pod that uses it.
var ErrWaitsForConsumer = errors.New("the claim waits for its first consumer: create a pod that uses it")

// ErrReserved says that a volume is reserved for a claim already, or storage for it is about
// to be made.
var ErrReserved = errors.New("a volume is being reserved for the claim already")

// Reason is why a claim cannot have a volume.
type Reason string

// The reasons, in the words of messages.
const (
	BoundElsewhere       Reason = "belongs to another claim"
	NotAvailable         Reason = "not available"
	Invalid              Reason = "invalid"
	OtherVolumeMode      Reason = "other volume mode"
	OtherAccessModes     Reason = "other access modes"
	OtherAttributesClass Reason = "other volume attributes class"
	OtherClass           Reason = "other storage class"
	OtherLabels          Reason = "labels do not match the selector"
	TooSmall             Reason = "too small"
	OtherNode            Reason = "not reachable from this node"
)

// Rejection says why a claim cannot have one volume.
type Rejection struct {
	Volume string
	Reason Reason
	// Detail is the volume's value, such as its size; may be empty.
	Detail string
}

// Rejected is some volumes that a claim cannot have for one reason.
type Rejected struct {
	Reason Reason
	Count  int
	// First are the first three of them, by size, then name.
	First []Rejection
}

// UnboundError says that a claim could not be bound. Err is the sentinel
// [claimbinding.ErrUnbound], [claimbinding.ErrLost], [claimbinding.ErrElsewhere],
// [ErrWaitsForConsumer], [ErrNeedsData] or [ErrReserved], a *[volume.InvalidSpecError] about the
// claim, or what went wrong on the way.
type UnboundError struct {
	Claim types.NamespacedName
	// Volume is the only volume that was considered, where the claim names one.
	Volume string
	// Rejected holds every volume that was considered, by its first reason; those
	// that were made for other claims are none of them.
	Rejected []Rejected
	Err      error
}

// MaxNamed is how many volumes are named for each reason.
const MaxNamed = 3

func (e *UnboundError) Error() string {
	return fmt.Sprintf("bind PersistentVolumeClaim %q: %s", e.Claim, e.Why())
}

// Why is the message without the claim's name, for a list of claims.
func (e *UnboundError) Why() string {
	text := fmt.Sprint(e.Err)
	switch {
	case len(e.Rejected) > 0:
		return text + ": " + e.Reasons()
	case e.Volume != "" && (errors.Is(e.Err, claimbinding.ErrUnbound) || errors.Is(e.Err, claimbinding.ErrLost)):
		return fmt.Sprintf("%s: PersistentVolume %q, which it is for, does not exist; create it", text, e.Volume)
	case e.Err == claimbinding.ErrUnbound: // else it says more
		return text + ": there is no PersistentVolume; create one"
	}
	return text
}

// Unwrap returns Err.
func (e *UnboundError) Unwrap() error { return e.Err }

// WaitsFor implements [claimbinding.Waiting].
func (e *UnboundError) WaitsFor() string {
	if inner, ok := errors.AsType[claimbinding.Waiting](e.Err); ok {
		return inner.WaitsFor()
	}
	for _, waiting := range []error{claimbinding.ErrUnbound, ErrWaitsForConsumer, ErrReserved} {
		if errors.Is(e.Err, waiting) {
			return claimbinding.ToBeBound(e.Claim)
		}
	}
	return ""
}

// Reasons returns the reasons, each with the number of its volumes and some names.
func (e *UnboundError) Reasons() string {
	parts := make([]string, 0, len(e.Rejected))
	for _, group := range e.Rejected {
		names := make([]string, 0, len(group.First))
		for _, r := range group.First {
			if r.Detail == "" {
				names = append(names, r.Volume)
			} else {
				names = append(names, r.Volume+": "+r.Detail)
			}
		}
		more := ""
		if n := group.Count - len(names); n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		parts = append(parts, fmt.Sprintf("%s (%s%s)", group.Reason, strings.Join(names, "; "), more))
	}
	return strings.Join(parts, ", ")
}
