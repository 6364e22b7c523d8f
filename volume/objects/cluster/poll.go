package cluster

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/following"
)

const (
	firstPoll = time.Second
	lastPoll  = time.Minute
)

// poll updates an entry until ctx ends, only by gets. An object that has just
// changed, or has just got a watcher, tends to change again soon: a claim gets
// bound.
func (e *entry) poll(ctx context.Context, r resource, clientset kubernetes.Interface) {
	pause := retry.Pause{First: firstPoll, Last: lastPoll}
	for {
		if e.look(ctx, r, clientset) {
			pause.Reset()
		}
		select {
		case <-time.After(wait.Jitter(pause.Next(), 0.1)): // so that nodes do not ask in step
		case <-ctx.Done():
			return
		}
	}
}

// look reads the object once, and reports whether its state is new.
func (e *entry) look(ctx context.Context, r resource, clientset kubernetes.Interface) (news bool) {
	limited, cancel := context.WithTimeoutCause(ctx, following.AnswerTimeout, following.ErrNoAnswer)
	defer cancel()
	object, err := r.liveGet(limited, clientset, e.ref)
	switch {
	case ctx.Err() != nil:
		return false
	case errors.Is(err, volume.ErrNotFound):
		return e.set(nil)
	case err != nil:
		e.fail(err)
		return false
	}
	return e.set(object)
}
