package payload

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
)

const (
	// defaultExpiration is in seconds, the API's.
	defaultExpiration     int64 = 3600
	defaultServiceAccount       = "default"
	// eventTokenKept is the reason of the event that tells that a token could
	// not be renewed in time and the old one, still valid, is kept.
	eventTokenKept = "TokenRefreshFailed"
)

// token adds a file with a service account token that is bound to the pod.
func (c *collector) token(ctx context.Context, at string, t *v1.ServiceAccountTokenProjection) error {
	role, err := volume.Role[volume.TokenRequester](c.host)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	key := c.tokenKey(t)
	got, err := c.tokens.get(ctx, key, func() (*authenticationv1.TokenRequest, error) {
		return role.RequestToken(ctx, key.namespace, key.serviceAccount, key.request(c.pod.Name))
	})
	if err != nil {
		return fmt.Errorf("%s: cannot get a token of service account %q for audience %q: %w",
			at, key.namespace+"/"+key.serviceAccount, key.audience, err)
	}
	if got.kept != nil {
		c.warn(fmt.Sprintf("the token of service account %q could not be renewed, the old one is kept until it expires at %s: %v",
			key.namespace+"/"+key.serviceAccount, got.expires.UTC().Format("2006-01-02 15:04:05 MST"), got.kept))
	}
	c.due(got.due)
	return c.addOwned(at, t.Path, []byte(got.secret()), kubeapi.User(t))
}

// warn reports to the pod's events, if the host has any.
func (c *collector) warn(message string) {
	if sink, err := volume.Role[volume.EventSink](c.host); err == nil {
		sink.Event(c.pod, v1.EventTypeWarning, eventTokenKept, message)
	}
}

func (c *collector) tokenKey(t *v1.ServiceAccountTokenProjection) tokenKey {
	key := tokenKey{
		podUID: c.pod.UID, namespace: c.pod.Namespace, serviceAccount: c.pod.Spec.ServiceAccountName,
		audience: t.Audience, expirationSeconds: defaultExpiration,
	}
	if key.serviceAccount == "" {
		key.serviceAccount = defaultServiceAccount
	}
	if t.ExpirationSeconds != nil {
		key.expirationSeconds = *t.ExpirationSeconds
	}
	return key
}

func (k tokenKey) request(podName string) *authenticationv1.TokenRequest {
	seconds := k.expirationSeconds
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: podName, UID: k.podUID},
	}}
	if k.audience != "" { // else the issuer's own
		request.Spec.Audiences = []string{k.audience}
	}
	return request
}
