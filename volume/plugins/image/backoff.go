package image

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// attempts are the pulls of pods that are on the node. The zero value is ready.
type attempts struct {
	mu  sync.Mutex
	all map[attemptKey]attempt
}

type attemptKey struct {
	podUID types.UID
	ref    string
}

// attempt is the last pull: its digest, or its error and when to try again.
type attempt struct {
	digest string
	err    error
	delay  time.Duration
	until  time.Time
}

// The pauses between pulls are Kubernetes'.
const (
	firstDelay = 10 * time.Second
	maxDelay   = 5 * time.Minute
)

func (a *attempts) last(key attemptKey) attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[key]
}

func (a *attempts) note(key attemptKey, last attempt) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = make(map[attemptKey]attempt)
	}
	a.all[key] = last
}

// failed notes an error, and returns when to try again. A caller that has left says nothing
// about the registry.
func (a *attempts) failed(ctx context.Context, key attemptKey, err error) (time.Time, bool) {
	if ctx.Err() != nil {
		return time.Time{}, false
	}
	delay := min(max(firstDelay, 2*a.last(key).delay), maxDelay)
	until := time.Now().Add(delay)
	a.dropOld()
	a.note(key, attempt{err: err, delay: delay, until: until})
	return until, true
}

// dropOld forgets failures that hold nothing back any more: their pods may be gone.
func (a *attempts) dropOld() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, last := range a.all {
		if last.digest == "" && time.Since(last.until) > maxDelay {
			delete(a.all, key)
		}
	}
}

// forget forgets a pod.
func (a *attempts) forget(podUID types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key := range a.all {
		if key.podUID == podUID {
			delete(a.all, key)
		}
	}
}
