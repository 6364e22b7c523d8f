package clusterhost

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/podvol/podvol/volume"
)

const (
	// tokenTimeout bounds one request, however long its callers would wait.
	tokenTimeout = 30 * time.Second
	// reasonTokenRefreshFailed is the event that says that a token is older than
	// it should be.
	reasonTokenRefreshFailed = "TokenRefreshFailed"
)

// TokensConfig is the configuration of [Tokens]; its zero value works.
type TokensConfig struct {
	// Events takes an event about the pod whose token could not be renewed in
	// time; nil: none are sent.
	Events volume.EventSink
	// Logger takes the same; nil: nothing is logged.
	Logger *slog.Logger
}

// Tokens is a [volume.TokenRequester] over the API's TokenRequest. All methods
// are safe for concurrent use. Tokens are kept in memory only and never logged,
// also not where a Tokens is printed.
type Tokens struct {
	clientset kubernetes.Interface
	config    TokensConfig

	mu    sync.Mutex
	kept  map[tokenKey]*token
	calls map[tokenKey]*tokenCall
}

var (
	_ volume.TokenRequester = (*Tokens)(nil)
	_ volume.TokenForgetter = (*Tokens)(nil)
)

// NewTokens returns a requester that makes no request yet.
func NewTokens(clientset kubernetes.Interface, config TokensConfig) *Tokens {
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	return &Tokens{clientset: clientset, config: config, kept: make(map[tokenKey]*token), calls: make(map[tokenKey]*tokenCall)}
}

// RequestToken implements [volume.TokenRequester].
//
//   - The same request (namespace, account, audiences, seconds and bound object with its
//     UID) gets the same token until 80 % of its life or 24 hours have passed, less some
//     seconds that differ from token to token, as in the kubelet. Then a new one is
//     requested.
//   - While that fails, the old token is returned as long as it is valid: the failure is
//     logged and an event, and requests pause for 5 to 40 seconds.
//   - Callers with the same request share one. It goes on when one caller's ctx ends, but not
//     without any, nor for longer than half a minute. A caller whose ctx ends while an old
//     token is valid gets that.
//   - A token's life counts from its request, by this machine's clock, and so does the
//     returned expirationTimestamp: the API server's clock does not matter.
//   - The error is [ErrNoToken], or the cause of ctx's end.
func (t *Tokens) RequestToken(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	if request == nil {
		return nil, volume.Invalid("request", "must be given")
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	key := keyOf(namespace, serviceAccount, request.Spec)
	kept, call := t.join(ctx, key, request)
	if call == nil {
		return kept.answer(), nil
	}
	fresh, err := call.wait(ctx, func() { t.leave(key, call) })
	switch {
	case err == nil:
		return fresh.answer(), nil
	case kept != nil && kept.isValid(time.Now()):
		return kept.answer(), nil
	}
	return nil, err
}

// ForgetTokens implements [volume.TokenForgetter]. A request for this pod that is
// under way is still answered, but its token is not kept.
func (t *Tokens) ForgetTokens(podUID types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range t.kept {
		if key.bound.UID == podUID {
			delete(t.kept, key)
		}
	}
	for key := range t.calls {
		if key.bound.UID == podUID {
			delete(t.calls, key)
		}
	}
}

// join returns the kept token, if any, and the request to wait for; nil: the kept
// one will do.
func (t *Tokens) join(ctx context.Context, key tokenKey, request *authenticationv1.TokenRequest) (*token, *tokenCall) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept, now := t.kept[key], time.Now()
	if kept != nil && !kept.wantsRenewal(now) {
		return kept, nil
	}
	call := t.calls[key]
	if call == nil {
		call = t.start(ctx, key, request.DeepCopy())
	}
	call.waiting++
	return kept, call
}

// start begins a request that outlives ctx. t is locked.
func (t *Tokens) start(ctx context.Context, key tokenKey, request *authenticationv1.TokenRequest) *tokenCall {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), tokenTimeout,
		fmt.Errorf("the API has not answered within %s", tokenTimeout))
	call := &tokenCall{done: make(chan struct{}), cancel: cancel}
	t.calls[key] = call
	go func() {
		defer cancel()
		sent := time.Now()
		answer, err := t.clientset.CoreV1().ServiceAccounts(key.namespace).CreateToken(ctx, key.account, request, metav1.CreateOptions{})
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
		t.finish(key, call, sent, answer, err)
	}()
	return call
}

func (t *Tokens) finish(key tokenKey, call *tokenCall, sent time.Time, answer *authenticationv1.TokenRequest, err error) {
	defer close(call.done)
	fresh, err := newToken(key, sent, answer, err)
	call.fresh, call.err = fresh, err
	old, current := t.store(key, call, time.Now())
	if err != nil && current && old != nil {
		t.tell(key, old, err)
	}
}

// store keeps the outcome of a request, unless no caller wants it any more. It
// returns the valid token that another try shall replace.
func (t *Tokens) store(key tokenKey, call *tokenCall, now time.Time) (old *token, current bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.calls[key] != call {
		return nil, false
	}
	delete(t.calls, key)
	for other, kept := range t.kept {
		if !kept.isValid(now) {
			delete(t.kept, other)
		}
	}
	if call.err == nil {
		t.kept[key] = call.fresh
		return nil, true
	}
	if old = t.kept[key]; old != nil {
		old = old.pausing(now)
		t.kept[key] = old
	}
	return old, true
}

// leave takes one caller off a request. One that no caller waits for is given up.
func (t *Tokens) leave(key tokenKey, call *tokenCall) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if call.waiting--; call.waiting > 0 {
		return
	}
	call.cancel()
	if t.calls[key] == call {
		delete(t.calls, key)
	}
}

// tell says that an old token goes on to be used.
func (t *Tokens) tell(key tokenKey, old *token, err error) {
	t.config.Logger.Warn("a service account token could not be renewed, the old one is used as long as it is valid",
		"namespace", key.namespace, "serviceAccount", key.account, "pod", key.bound.Name, "validUntil", old.expires(), "failures", old.failures, "error", err)
	if t.config.Events == nil || key.bound.Kind != "Pod" {
		return
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.namespace, Name: key.bound.Name, UID: key.bound.UID}}
	t.config.Events.Event(pod, v1.EventTypeWarning, reasonTokenRefreshFailed,
		fmt.Sprintf("the token of service account %q could not be renewed, the old one is used until it expires at %s: %v",
			key.namespace+"/"+key.account, old.expires().UTC().Format("2006-01-02 15:04:05 MST"), err))
}

// tokenCall is one request and its waiting callers.
type tokenCall struct {
	waiting int // guarded by Tokens.mu
	cancel  context.CancelFunc
	done    chan struct{}
	fresh   *token // set before done is closed
	err     error  // as fresh
}

// wait returns the outcome, or the cause of ctx's end after it has called leave.
func (c *tokenCall) wait(ctx context.Context, leave func()) (*token, error) {
	select {
	case <-c.done:
		return c.fresh, c.err
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
