package clusterhost

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/clocks"
)

const (
	// maxTokenAge is how long a token is used at most, however long it lives.
	maxTokenAge = 24 * time.Hour
	// earliness spreads the renewals of tokens that were issued in one moment, and
	// renews a token that is due by another clock.
	earliness = 10 * time.Second
	// defaultTokenSeconds is the API's default for expirationSeconds.
	defaultTokenSeconds = 3600

	firstTokenPause = 5 * time.Second
	lastTokenPause  = 40 * time.Second
)

// tokenKey says what a token was requested for.
type tokenKey struct {
	namespace, account string
	audiences          string // quoted one by one
	seconds            int64
	bound              authenticationv1.BoundObjectReference
}

func keyOf(namespace, account string, spec authenticationv1.TokenRequestSpec) tokenKey {
	key := tokenKey{namespace: namespace, account: account, audiences: fmt.Sprintf("%q", spec.Audiences), seconds: defaultTokenSeconds}
	if spec.ExpirationSeconds != nil {
		key.seconds = *spec.ExpirationSeconds
	}
	if spec.BoundObjectRef != nil {
		key.bound = *spec.BoundObjectRef
	}
	return key
}

// token is an issued token. It is not changed once it is kept.
type token struct {
	// answer returns a copy of what the API answered. It is a function since
	// printing, reflection and encoding stop at functions.
	answer func() *authenticationv1.TokenRequest
	// sent is when it was requested.
	sent time.Time
	// due and life are durations from then.
	due, life time.Duration

	failures int
	// notBefore is when the next request may be made.
	notBefore time.Time
}

// newToken takes an answer of the API.
func newToken(key tokenKey, sent time.Time, answer *authenticationv1.TokenRequest, err error) (*token, error) {
	if err == nil && (answer == nil || answer.Status.Token == "") {
		err = errors.New("the API answered without a token")
	}
	if err != nil {
		return nil, newTokenError(key, err)
	}
	life := lifeOf(key, answer)
	answer = answer.DeepCopy()
	answer.Status.ExpirationTimestamp = metav1.NewTime(sent.Add(life).Round(0))
	due := min(life/5*4, maxTokenAge) - time.Second - rand.N(earliness-time.Second)
	return &token{answer: answer.DeepCopy, sent: sent, due: due, life: life}, nil
}

// lifeOf is how long a token is valid, by the server's clock alone or by none:
// the server may shorten the requested time.
func lifeOf(key tokenKey, answer *authenticationv1.TokenRequest) time.Duration {
	seconds := key.seconds
	if s := answer.Spec.ExpirationSeconds; s != nil && *s > 0 {
		seconds = *s
	}
	life := time.Duration(seconds) * time.Second
	created, expires := answer.CreationTimestamp.Time, answer.Status.ExpirationTimestamp.Time
	if stated := expires.Sub(created); !created.IsZero() && stated > 0 {
		life = min(life, stated)
	}
	return life
}

func (t *token) expires() time.Time { return t.sent.Add(t.life) }

func (t *token) isValid(now time.Time) bool { return t.age(now) < t.life }

func (t *token) wantsRenewal(now time.Time) bool {
	if !t.isValid(now) {
		return true
	}
	return t.age(now) >= t.due && !now.Before(t.notBefore)
}

// age is by the clock that says more.
func (t *token) age(now time.Time) time.Duration {
	return clocks.Between(t.sent, now)
}

// pausing is the token after one more request for another has failed.
func (t *token) pausing(now time.Time) *token {
	next := *t
	pause := min(firstTokenPause<<min(t.failures, 10), lastTokenPause)
	next.failures++
	next.notBefore = now.Add(pause + rand.N(pause/5))
	return &next
}
