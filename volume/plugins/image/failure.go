package image

import (
	"errors"
	"fmt"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/image/internal/layers"
	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
	"github.com/podvol/podvol/volume/plugins/image/internal/registry"
)

// Reason is a cause of failures, in Kubernetes' word.
type Reason string

// Reasons. [errors.Is] finds them in the errors of SetUp and NewMounter.
const (
	// ErrImagePull: the image was to be pulled, and that failed.
	ErrImagePull Reason = "ErrImagePull"
	// ErrImagePullBackOff: it failed a short time ago, and is not tried yet again.
	ErrImagePullBackOff Reason = "ImagePullBackOff"
	// ErrImageNeverPull: the image is not on the node, and the policy is Never.
	ErrImageNeverPull Reason = "ErrImageNeverPull"
	// ErrInvalidImageName: the reference is no name of an image.
	ErrInvalidImageName Reason = "InvalidImageName"
)

func (r Reason) Error() string { return string(r) }

// CauseWord implements [volume.WordedCause].
func (r Reason) CauseWord() string { return string(r) }

// Further causes, behind ErrImagePull.
const (
	// ErrUnauthorized: the registry does not give the image with the credentials at hand.
	ErrUnauthorized = registry.ErrUnauthorized
	// ErrDigestMismatch: what came is not what its digest says.
	ErrDigestMismatch = oci.ErrDigestMismatch
	// ErrMalformed: the image cannot be read.
	ErrMalformed = oci.ErrMalformed
	// ErrNoPlatform: the image is not made for this node.
	ErrNoPlatform = oci.ErrNoPlatform
	// ErrHostile: a layer has what a volume must not have.
	ErrHostile = layers.ErrHostile
	// ErrTooLarge: the image is over the node's limits.
	ErrTooLarge = layers.ErrTooLarge
	// ErrNoSpace: the disk would be too full.
	ErrNoSpace = layers.ErrNoSpace
)

func parse(reference string) (oci.Reference, error) {
	ref, err := oci.Parse(reference)
	if err != nil {
		return ref, volume.NothingDone(&volume.Failure{Cause: ErrInvalidImageName, Subject: reference, Err: err,
			What: fmt.Sprintf("image.reference %.300q is no name of an image (%s): %v", reference, ErrInvalidImageName, err),
			Next: "write it as registry/repository:tag, such as registry.k8s.io/pause:3.10"})
	}
	return ref, nil
}

// pullFailed is the error of a pull. at is the time of the next one that is useful.
func pullFailed(ref oci.Reference, reason Reason, err error, at time.Time) error {
	what := fmt.Sprintf("%s: image %q of registry %s: %v", reason, ref, ref.Domain, err)
	return &laterError{at: at, Failure: volume.Failure{Cause: reason, Subject: ref.String(), What: what, Next: advice(ref, err), Err: err}}
}

func advice(ref oci.Reference, err error) string {
	switch {
	case errors.Is(err, ErrUnauthorized):
		return fmt.Sprintf("give the pod a pull secret for %s (imagePullSecrets), or the node credentials, and check the image's name", ref.Domain)
	case errors.Is(err, volume.ErrNotFound):
		return "check the image's name and tag, and whether a private repository needs a pull secret"
	case errors.Is(err, ErrTooLarge):
		return "use a smaller image, or raise the node's limits for image volumes"
	case errors.Is(err, ErrNoSpace):
		return "free space on the node"
	case errors.Is(err, ErrNoPlatform):
		return "push the image for this platform, or run the pod on another node"
	case errors.Is(err, ErrDigestMismatch):
		return "push the image again, if this repeats; nothing of it is shown"
	case errors.Is(err, ErrHostile), errors.Is(err, ErrMalformed):
		return "build the image anew; nothing of it is shown"
	}
	return fmt.Sprintf("check that this node reaches %s", ref.Domain)
}

// laterError is a failed pull that knows when the next is useful.
type laterError struct {
	volume.Failure
	at time.Time
}

// RetryAt implements [volume.RetryAtError].
func (e *laterError) RetryAt() time.Time { return e.at }
