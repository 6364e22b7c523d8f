package clusterhost

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
)

// ErrNoToken says that the API issued no token. The error is a [volume.Failure]. It
// also matches [volume.ErrNotFound] if the API server has said that there is no such
// account.
const ErrNoToken volume.Cause = "the API issued no token"

func newTokenError(key tokenKey, err error) error {
	account := key.namespace + "/" + key.account
	failure := &volume.Failure{
		Cause: ErrNoToken, Subject: account, Err: err,
		What: fmt.Sprintf("no token of service account %q: %v", account, err),
	}
	switch missing := missingKind(err); {
	case missing == "serviceaccounts":
		failure.Cause = errors.Join(ErrNoToken, volume.ErrNotFound)
		failure.Next = "create the account, or name another in the pod's serviceAccountName"
	case missing == "pods":
		failure.Next = "the pod that the token is for is gone from the API: tear it down"
	case missing != "":
		failure.Next = "the API server, or a proxy in front of it, does not serve this request: check the address that the clientset has"
	case apierrors.IsForbidden(err):
		failure.Next = "this identity needs the verb create for serviceaccounts/token; a node (system:node:<name>) has it for pods that are bound to it by spec.nodeName, " +
			"and for the audiences that their volumes name"
	case apierrors.IsUnauthorized(err):
		failure.Next = "the API server does not know this identity: check the credentials that the clientset has"
	case apierrors.IsConflict(err):
		failure.Next = "a pod of this name with another UID has taken its place: tear the old one down"
	}
	return failure
}

// missingKind is the kind, as in a URL, of the object that the API server itself says
// does not exist; empty for other errors, "?" where it is not said.
func missingKind(err error) string {
	if !apierrors.IsNotFound(err) {
		return ""
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.Status().Details == nil || status.Status().Details.Kind == "" ||
		apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return "?"
	}
	return status.Status().Details.Kind
}
