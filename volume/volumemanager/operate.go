package volumemanager

import (
	"context"
	"time"

	"github.com/podvol/podvol/util/flight"
)

// grace is how long an operation whose caller waits no more may take to say
// what became of it: plugins promise to return promptly, and their own error
// tells more than that somebody gave up.
const grace = 2 * time.Second

// operate runs an operation on a volume after those before it. It returns
// abandoned when ctx, and then the grace, ended first: then the operation may
// still be running, and publishes its own outcome.
func (m *Manager) operate(ctx context.Context, key volumeKey, operation func() error) (abandoned, err error) {
	if ctx.Err() != nil {
		return &flight.AbandonedError{Err: context.Cause(ctx)}, nil
	}
	waiting, cancel := afterGrace(ctx)
	defer cancel()
	m.running.Add(1)
	result := make(chan error, 1)
	err = m.operations.Do(waiting, key, func() error {
		defer m.running.Done()
		err := operation()
		result <- err
		return nil
	})
	if err == nil {
		return nil, <-result
	}
	gaveUp, ok := err.(*flight.AbandonedError) // Do's own, since the operation's went elsewhere
	if ok && !gaveUp.Started {
		m.running.Done()
	}
	return err, nil
}

// afterGrace returns a context that ends the grace after ctx.
func afterGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel(context.Cause(ctx))
		case <-later.Done():
		}
	})
	return later, func() { stop(); cancel(nil) }
}
