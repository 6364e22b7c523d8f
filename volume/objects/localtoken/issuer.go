package localtoken

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/flight"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// IssuerName is the issuer of every token, and the audience of those that are
// requested without one. The domain "invalid" is reserved by RFC 2606, so
// nobody can ever own it.
const IssuerName = "podvol.invalid"

// Issuer signs tokens with the key in one file. It is a [volume.TokenRequester];
// all methods are safe for concurrent use, also by several issuers and
// processes with the same file. It must not be copied.
type Issuer struct {
	// ServiceAccountUID, if not nil, looks a service account's UID up, for the
	// claim kubernetes.io/serviceaccount/uid. It may not know the account: an
	// empty UID, and an error that matches [volume.ErrNotFound], fall back to
	// [objects.DerivedUID], which accounts from manifests have too. It must be
	// set before the first token is requested.
	ServiceAccountUID func(ctx context.Context, namespace, name string) (types.UID, error)

	// NodeName, if not empty, is the node of every pod, for the claim
	// kubernetes.io/node of tokens that are bound to a pod. It must be set
	// before the first token is requested.
	NodeName string

	keyPath string
	key     atomic.Pointer[signingKey] // nil until first needed
	loading flight.Group[struct{}]     // reading a file cannot be cancelled
}

var _ volume.TokenRequester = (*Issuer)(nil)

// New returns the issuer whose key is in the file keyPath. It does no I/O: the
// key is read when it is first needed, and made if there is none. The file's
// directory must exist by then. The key is read once; replacing the file has
// an effect on new issuers only.
func New(keyPath string) *Issuer { return &Issuer{keyPath: keyPath} }

// RequestToken issues a token as the API's TokenRequest does: valid from now
// on for expirationSeconds, 3600 unless given, at least 600 and at most 2^32;
// for the audiences, [IssuerName] unless given. A boundObjectRef must name a
// Pod with its UID; the binding is a claim only, the token stays valid when
// the pod is gone.
//
// The result is a copy of request with the defaults and the status filled in;
// request is not changed. The error is a *[volume.InvalidSpecError] for a
// request that is refused, a *[KeyFileError] where the key cannot be used, a
// [flight.AbandonedError] when ctx ended first, or that of ServiceAccountUID.
// Errors never hold key or token.
func (i *Issuer) RequestToken(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	if err := checkRequest(namespace, serviceAccount, request); err != nil {
		return nil, err
	}
	result := request.DeepCopy()
	setDefaults(&result.Spec)
	uid, err := i.serviceAccountUID(ctx, namespace, serviceAccount)
	if err != nil {
		return nil, fmt.Errorf("looking up service account %s/%s for a token: %w", namespace, serviceAccount, err)
	}
	key, err := i.signingKey(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now().Truncate(time.Second) // claims have whole seconds
	expires := now.Add(time.Duration(*result.Spec.ExpirationSeconds) * time.Second)
	token, err := key.sign(i.newClaims(namespace, serviceAccount, uid, result.Spec, now, expires))
	if err != nil {
		return nil, fmt.Errorf("signing a token for service account %s/%s: %w", namespace, serviceAccount, err)
	}
	result.Status = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.NewTime(expires)}
	return result, nil
}

// JWKS returns the public key as a JSON web key set (RFC 7517), which is what
// verifiers of tokens read. It makes the key if there is none. The errors are
// those of RequestToken.
func (i *Issuer) JWKS(ctx context.Context) ([]byte, error) {
	key, err := i.signingKey(ctx)
	if err != nil {
		return nil, err
	}
	return key.jwks()
}

func (i *Issuer) signingKey(ctx context.Context) (*signingKey, error) {
	if key := i.key.Load(); key != nil {
		return key, nil
	}
	err := i.loading.Do(ctx, struct{}{}, func() error {
		if i.key.Load() != nil {
			return nil
		}
		private, err := readOrCreateKey(i.keyPath)
		if err != nil {
			return err
		}
		key, err := newSigningKey(private)
		if err != nil {
			return err
		}
		i.key.Store(key)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("getting the key that signs service account tokens: %w", err)
	}
	return i.key.Load(), nil
}

func (i *Issuer) serviceAccountUID(ctx context.Context, namespace, name string) (types.UID, error) {
	if i.ServiceAccountUID == nil {
		return derivedUID(namespace, name), nil
	}
	uid, err := i.ServiceAccountUID(ctx, namespace, name)
	if errors.Is(err, volume.ErrNotFound) || err == nil && uid == "" {
		return derivedUID(namespace, name), nil
	}
	return uid, err
}

func derivedUID(namespace, name string) types.UID {
	return objects.DerivedUID("ServiceAccount", namespace, name)
}
