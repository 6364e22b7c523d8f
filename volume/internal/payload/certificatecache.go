package payload

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/clocks"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
)

const (
	// firstPatience is how long a set-up waits for a signer before the pod is told,
	// and the wait goes on in the next one.
	firstPatience = 30 * time.Second
	// renewalPatience is how long it waits while the old certificate is valid: the
	// volume's other sources wait, too.
	renewalPatience = 5 * time.Second
	// overdue is how late a renewal is before the pod is told, as with the kubelet.
	overdue = 10 * time.Minute
	// forgetAfter is how long a source is remembered that is not asked for: a pod that
	// is wanted is tried again long before.
	forgetAfter = time.Hour
)

var (
	// errUndecided ends the wait for a signer.
	errUndecided = errors.New("the signer has not decided yet")
	// errUnanswered ends a request.
	errUnanswered = errors.New("the request was not answered in time")
)

// undecidedError says which request a signer has not decided on. The next wait may
// begin at once.
type undecidedError struct{ request string }

func (e *undecidedError) Error() string {
	return fmt.Sprintf("its signer has not decided on PodCertificateRequest %s yet; it is waited for, look whether that signer runs", e.request)
}

// RetryAt implements [volume.RetryAtError].
func (e *undecidedError) RetryAt() time.Time { return time.Now() }

// Unwrap makes errors.Is find errUndecided.
func (e *undecidedError) Unwrap() error { return errUndecided }

// certificateKey is one source of one volume.
type certificateKey struct {
	podUID        types.UID
	volume, field string
}

// certificateState is what is known of one source. Only the holder of its lock
// uses it.
type certificateState struct {
	held *certificate // nil: none yet
	// key and request are of what a signer was asked for and has not answered. key is a
	// function since printing stops at functions; nil: it was asked for nothing.
	key     func() crypto.Signer
	request string
	// refused ends all asking.
	refused error

	// until is when it may be forgotten. The cache's mutex guards it.
	until time.Time
}

// certificateCache holds certificates with their keys until they are due for renewal.
// Its zero value is ready and its methods are safe for concurrent use.
type certificateCache struct {
	busy keylock.Map[certificateKey]

	mu     sync.Mutex
	states map[certificateKey]*certificateState
}

// get returns the certificate of a source, by a request only if there is none or it
// is due. While the old one is valid, a request that fails or waits is no error: key
// and certificate stay as they are, together. A request that waits is waited for by
// the next call. Calls for one source take turns.
func (c *certificateCache) get(ctx context.Context, key certificateKey, from certificateSource) (certificate, error) {
	unlock, err := c.busy.Lock(ctx, key)
	if err != nil {
		return certificate{}, err
	}
	defer unlock()
	now := time.Now()
	s := c.use(key, now)
	if s.held == nil {
		if found := from.adopt(now); found != nil {
			c.hold(s, found)
		}
	}
	if s.held != nil && !clocks.IsDue(s.held.due, now) {
		return *s.held, nil
	}
	valid := s.held != nil && !clocks.IsDue(s.held.expires, now)
	patience := firstPatience
	if valid {
		patience = renewalPatience
	}
	fresh, err := s.issue(ctx, from, patience)
	switch {
	case err == nil:
		c.hold(s, fresh)
		return *fresh, nil
	case valid && ctx.Err() == nil:
		return s.keep(now, err), nil
	}
	return certificate{}, err
}

// keep returns the old certificate, which is due.
func (s *certificateState) keep(now time.Time, err error) certificate {
	s.held.due = earlier(now.Add(retryIssue), s.held.expires)
	if s.refused != nil {
		s.held.due = s.held.expires
	}
	kept := *s.held
	if !errors.Is(err, errUndecided) || clocks.Between(kept.refresh, now) >= overdue {
		kept.kept = err
	}
	return kept
}

// issue asks the signer, or goes on to wait for its decision.
func (s *certificateState) issue(ctx context.Context, from certificateSource, patience time.Duration) (*certificate, error) {
	if s.refused != nil {
		return nil, s.refused
	}
	if s.key == nil {
		key, err := newKey(from.KeyType)
		if err != nil {
			return nil, err
		}
		s.key = func() crypto.Signer { return key }
	}
	if s.request == "" {
		limited, cancel := context.WithTimeoutCause(ctx, patience, errUnanswered)
		defer cancel()
		name, err := from.role.RequestPodCertificate(limited, from.pod, from.request(s.key()))
		if err != nil {
			return nil, err
		}
		s.request = name
	}
	return s.await(ctx, from, patience)
}

// await waits for the decision. Key and request end with it, whatever it is.
func (s *certificateState) await(ctx context.Context, from certificateSource, patience time.Duration) (*certificate, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errUndecided)
	defer cancel()
	issued, err := from.role.AwaitPodCertificate(ctx, from.pod.Namespace, s.request)
	key, name := s.key(), from.pod.Namespace+"/"+s.request
	refused, gone := errors.Is(err, volume.ErrPodCertificateRefused), errors.Is(err, volume.ErrNotFound)
	if err == nil || refused || gone {
		s.key, s.request = nil, ""
	}
	switch {
	case err == nil:
		return newCertificate(time.Now(), key, issued)
	case refused:
		s.refused = err
	case gone:
		return nil, fmt.Errorf("PodCertificateRequest %s was deleted before its signer had decided, so another one is made", name)
	case errors.Is(context.Cause(ctx), errUndecided):
		return nil, &undecidedError{request: name}
	}
	return nil, err
}

// use returns the state of a source, and forgets those that no pod asks for any more:
// their volumes were never set up, so none is torn down.
func (c *certificateCache) use(key certificateKey, now time.Time) *certificateState {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.states[key]
	if s == nil {
		if c.states == nil {
			c.states = make(map[certificateKey]*certificateState)
		}
		maps.DeleteFunc(c.states, func(_ certificateKey, s *certificateState) bool { return now.After(s.until) })
		s = &certificateState{}
		c.states[key] = s
	}
	if until := now.Add(forgetAfter); until.After(s.until) {
		s.until = until
	}
	return s
}

// hold remembers a certificate for as long as it is valid.
func (c *certificateCache) hold(s *certificateState, fresh *certificate) {
	s.held = fresh
	c.mu.Lock()
	defer c.mu.Unlock()
	s.until = fresh.expires.Add(forgetAfter)
}

func (c *certificateCache) drop(podUID types.UID, volume string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.states, func(key certificateKey, _ *certificateState) bool {
		return key.podUID == podUID && key.volume == volume
	})
}
