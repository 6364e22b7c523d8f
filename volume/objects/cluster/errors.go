package cluster

import (
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// ErrKeyedKind says that objects of a kind can be read one by one only. The subject of
// the [volume.Failure] is the kind.
const ErrKeyedKind volume.Cause = "objects of this kind are read one by one only"

func keyedKind(kind string) error {
	advice := "name the kind in Config.Shared, or give its informer in Config.Informers"
	if kind == "ClusterTrustBundle" {
		advice = "clusterhost.NewTrustBundles knows those of a signer as pods want them; otherwise " + advice
	}
	return &volume.Failure{Cause: ErrKeyedKind, Subject: kind, What: fmt.Sprintf("objects of kind %s are not listed here: %s", kind, advice)}
}

// failed translates the API's error into one of package objects. The API's own
// error stays in the chain, unless it says that the object is missing or invalid.
func failed(op string, ref volume.ObjectRef, err error) error {
	switch {
	case err == nil:
		return nil
	case saysMissing(err, ref):
		return fmt.Errorf("%s: %w", op, &volume.ObjectNotFoundError{Ref: ref})
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%s %s: %w: %w", op, ref, objects.ErrExists, err)
	case apierrors.IsConflict(err):
		return fmt.Errorf("%s %s: %w: %w", op, ref, objects.ErrConflict, err)
	case apierrors.IsInvalid(err):
		return fmt.Errorf("%s %s: %w", op, ref, volume.NothingDone(&volume.InvalidSpecError{Field: strings.Join(invalidFields(err), ", "), Reason: err.Error()}))
	}
	return fmt.Errorf("%s %s: %w", op, ref, err)
}

// saysMissing reports whether the API server itself has said that this object
// does not exist. A proxy's 404, or one for a missing resource or namespace, is
// about something else.
func saysMissing(err error, ref volume.ObjectRef) bool {
	if !apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return false
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.Status().Details == nil {
		return false
	}
	details := status.Status().Details
	return details.Name == ref.Name && details.Kind != "namespaces"
}

// invalidFields names the fields that the API server calls invalid.
func invalidFields(err error) []string {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.Status().Details == nil {
		return nil
	}
	var names []string
	for _, cause := range status.Status().Details.Causes {
		if cause.Field != "" {
			names = append(names, cause.Field)
		}
	}
	return names
}
