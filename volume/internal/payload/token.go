package payload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/clocks"
	"github.com/podvol/podvol/util/keylock"
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
	got, err := c.issued.tokens.get(ctx, key, func() (*authenticationv1.TokenRequest, error) {
		return role.RequestToken(ctx, key.namespace, key.serviceAccount, key.request(c.pod.Name))
	})
	if err != nil {
		return fmt.Errorf("%s: cannot get a token of service account %q for audience %q: %w",
			at, key.namespace+"/"+key.serviceAccount, key.audience, err)
	}
	if got.kept != nil {
		c.warn(eventTokenKept, fmt.Sprintf("the token of service account %q could not be renewed, the old one is kept until it expires at %s: %v",
			key.namespace+"/"+key.serviceAccount, utc(got.expires), got.kept))
	}
	c.due(got.due)
	return c.addOwned(at, t.Path, []byte(got.secret()), kubeapi.User(t))
}

// warn reports to the pod's events, if the host has any.
func (c *collector) warn(reason, message string) {
	if sink, err := volume.Role[volume.EventSink](c.host); err == nil {
		sink.Event(c.pod, v1.EventTypeWarning, reason, message)
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

const (
	// maxTokenAge is how long a token is used at most, however long it lives.
	maxTokenAge = 24 * time.Hour
	// retryIssue is the least time between two requests for the same token or
	// certificate: it is when a failed renewal is tried again, and it keeps a node
	// whose clock is ahead of the issuer's from asking without end.
	retryIssue = time.Minute
)

// tokenKey says what a token was asked for.
type tokenKey struct {
	podUID                              types.UID
	namespace, serviceAccount, audience string
	expirationSeconds                   int64
}

// token is an issued token.
type token struct {
	// secret returns the token. It is a function since printing, reflection
	// and encoding stop at functions.
	secret       func() string
	due, expires time.Time
	// kept is why the token was not renewed although it was due.
	kept error
}

// tokenCache holds tokens until they are due for renewal: at 80 % of their
// life, or 24 hours after they were issued, by the wall clock or the monotonic
// one. Its zero value is ready and its methods are safe for concurrent use.
type tokenCache struct {
	busy keylock.Map[tokenKey]

	mu     sync.Mutex
	tokens map[tokenKey]token
}

// get returns the token of key, by request only if there is none or it is due.
// While the old token is valid, a failing request is no error. An answer that is
// the old token is asked for again as after a failure. Requests for
// one key take turns.
func (c *tokenCache) get(ctx context.Context, key tokenKey, request func() (*authenticationv1.TokenRequest, error)) (token, error) {
	unlock, err := c.busy.Lock(ctx, key)
	if err != nil {
		return token{}, err
	}
	defer unlock()
	now := time.Now()
	old, found := c.find(key)
	if found && !clocks.IsDue(old.due, now) {
		return old, nil
	}
	fresh, err := issue(now, key, request)
	switch {
	case err == nil && found && fresh.secret() == old.secret():
		// The requester has a cache of its own, and could not renew it.
		fresh.due = earlier(now.Add(retryIssue), fresh.due)
	case err == nil:
	case ctx.Err() == nil && found && !clocks.IsDue(old.expires, now):
		fresh = old
		fresh.due = earlier(now.Add(retryIssue), old.expires)
		c.store(now, key, fresh)
		fresh.kept = err
		return fresh, nil
	default:
		return token{}, err
	}
	c.store(now, key, fresh)
	return fresh, nil
}

func issue(now time.Time, key tokenKey, request func() (*authenticationv1.TokenRequest, error)) (token, error) {
	answer, err := request()
	if err != nil {
		return token{}, err
	}
	if answer == nil || answer.Status.Token == "" {
		return token{}, errors.New("the issuer answered without a token")
	}
	expires := answer.Status.ExpirationTimestamp.Time
	if expires.IsZero() {
		expires = now.Add(time.Duration(key.expirationSeconds) * time.Second)
	}
	life := min(expires.Sub(now)/5*4, maxTokenAge)
	secret := answer.Status.Token
	return token{secret: func() string { return secret }, due: now.Add(max(life, retryIssue)), expires: expires}, nil
}

func (c *tokenCache) find(key tokenKey) (token, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.tokens[key]
	return t, ok
}

// store keeps a token. It also drops what expired: a set-up that overlaps the
// teardown of another volume of its pod can leave a token that is not asked for.
func (c *tokenCache) store(now time.Time, key tokenKey, t token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tokens == nil {
		c.tokens = make(map[tokenKey]token)
	}
	maps.DeleteFunc(c.tokens, func(_ tokenKey, t token) bool { return clocks.IsDue(t.expires, now) })
	c.tokens[key] = t
}

func (c *tokenCache) drop(podUID types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.tokens, func(key tokenKey, _ token) bool { return key.podUID == podUID })
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
