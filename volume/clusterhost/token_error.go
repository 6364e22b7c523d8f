package clusterhost

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
)

// TokenError says that the API issued no token. It matches [volume.ErrNotFound]
// if the service account does not exist.
type TokenError struct {
	Namespace, ServiceAccount string
	// Advice says what to do; empty where the API's error says all there is.
	Advice string
	// Missing: the API server has said that there is no such account.
	Missing bool
	// Err is what the API said.
	Err error
}

func (e *TokenError) Error() string {
	text := fmt.Sprintf("no token of service account %q: %v", e.Namespace+"/"+e.ServiceAccount, e.Err)
	if e.Advice != "" {
		text += "; " + e.Advice
	}
	return text
}

// Unwrap returns what the API said.
func (e *TokenError) Unwrap() error { return e.Err }

// Is makes errors.Is(err, [volume.ErrNotFound]) true where the account is missing.
func (e *TokenError) Is(target error) bool { return e.Missing && target == volume.ErrNotFound }

func newTokenError(key tokenKey, err error) *TokenError {
	e := &TokenError{Namespace: key.namespace, ServiceAccount: key.account, Err: err}
	switch missing := missingKind(err); {
	case missing == "serviceaccounts":
		e.Missing = true
		e.Advice = "create the account, or name another in the pod's serviceAccountName"
	case missing == "pods":
		e.Advice = "the pod that the token is for is gone from the API: tear it down"
	case missing != "":
		e.Advice = "the API server, or what is in front of it, does not serve this request: check the address that the clientset has"
	case apierrors.IsForbidden(err):
		e.Advice = "this identity needs the verb create for serviceaccounts/token; a node (system:node:<name>) has it for pods that are bound to it by spec.nodeName, " +
			"and for the audiences that their volumes name"
	case apierrors.IsUnauthorized(err):
		e.Advice = "the API server does not know this identity: check the credentials that the clientset has"
	case apierrors.IsConflict(err):
		e.Advice = "a pod of this name with another UID has taken its place: tear the old one down"
	}
	return e
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
