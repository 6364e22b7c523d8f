// Package volumestatus says how far volumes are: each row of Explain and Inspect of the manager, as
// a Go value and as JSON, and the errors that say what a volume or a pod waits for.
package volumestatus

import (
	"errors"

	"github.com/podvol/podvol/volume"
)

// Causes of a volume's errors, for [errors.Is].
const (
	// ErrReplaced: a pod's volume is mounted from another source than is now asked for.
	ErrReplaced volume.Cause = "the volume is mounted from another source"
)

var (
	// ErrVanished says that a volume's mount is gone although the manager has not unmounted it.
	ErrVanished = errors.New("its mount has vanished")
	// ErrWithdrawn says that a pod was deleted while a call waited for its volumes.
	ErrWithdrawn = errors.New("the pod was deleted meanwhile")
	// ErrPodEnded says that a pod's containers have ended for good.
	ErrPodEnded = errors.New("the pod has ended (phase Succeeded or Failed), so that its volumes are torn down and not set up")
)
