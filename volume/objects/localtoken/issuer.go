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

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// IssuerName is the issuer of every token. It is also the audience of tokens that
// are requested without one. RFC 2606 reserves the domain "invalid", so it can
// have no owner.
const IssuerName = "podvol.invalid"

// Issuer signs tokens with the key in one file. It is a [volume.TokenRequester].
// All methods are safe for concurrent use. Several issuers and processes may
// share the file. An Issuer must not be copied.
type Issuer struct {
	// ServiceAccountUID, if not nil, returns the UID of a service account, for
	// the claim kubernetes.io/serviceaccount/uid. It may return an empty UID, or
	// an error that matches [volume.ErrNotFound]. Then the UID is
	// [objects.DerivedUID], as of accounts from manifests. It must be set before
	// the first request of a token.
	ServiceAccountUID func(ctx context.Context, namespace, name string) (types.UID, error)

	// NodeName, if not empty, is the node of every pod, for the claim
	// kubernetes.io/node of tokens that are bound to a pod. It must be set before
	// the first request of a token.
	NodeName string

	keyPath string
	key     atomic.Pointer[signingKey]   // nil until first needed
	loading blockingcall.Group[struct{}] // reading a file cannot be cancelled
}

var _ volume.TokenRequester = (*Issuer)(nil)

// New returns the issuer with the key in the file keyPath. It does no I/O. The
// first use reads the key, or makes it if there is none; the file's directory
// must exist by then. The key is read once. A replaced file has an effect on new
// issuers only.
func New(keyPath string) *Issuer { return &Issuer{keyPath: keyPath} }

// RequestToken issues a token as the API's TokenRequest does.
//
//   - The token is valid from now on for expirationSeconds: 3600 unless given, at
//     least 600 and at most 2^32.
//   - Its audiences are [IssuerName] unless given.
//   - A boundObjectRef must name a Pod with its UID. The binding is a claim only:
//     the token stays valid when the pod is gone.
//   - The result is a copy of request with the defaults and the status set.
//     request is not changed.
//
// The errors, which never hold key or token:
//
//   - A *[volume.InvalidSpecError]: the request is refused.
//   - [ErrKeyFile]: the key cannot be used.
//   - A [blockingcall.AbandonedError]: ctx ended first.
//   - The error of ServiceAccountUID.
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

// JWKS returns the public key as a JSON web key set (RFC 7517), which verifiers
// of tokens read. It makes the key if there is none. The errors are as with
// RequestToken.
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
