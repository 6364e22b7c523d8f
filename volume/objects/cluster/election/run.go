package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/go-logr/logr"
	"github.com/podvol/podvol/util/retry"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
)

// ErrNotReturned says that lead has not returned in time after the end of its
// context.
var ErrNotReturned = errors.New("the work that was led has not ended in time, and may still run: end this process")

// Run campaigns for a lease until ctx ends. It calls lead each time that it wins
// the lease.
//
//   - lead's context ends with ctx. It also ends when the lease was lost, or when
//     it is no longer known whether it is held; then [context.Cause] is [ErrLost]
//     with the reason.
//   - The lease is renewed until lead has returned, if possible, and released
//     only then.
//   - lead is never called before an earlier call has returned.
//
// When lead returns:
//
//   - ctx has ended: the lease is released, and Run returns lead's error, unless
//     that is the context's.
//   - The lease was lost: Run campaigns again at once. lead's error is logged.
//   - else nil: the work is done. The lease is released, and Run returns nil.
//   - else an error: the lease is released, so that another replica can try. Run
//     campaigns again, after a pause of 1, 2, 4 … seconds, at most a minute. The
//     pause is short again after lead has run for longer than it.
//
// lead may not return within Config.Grace after the lease was lost, or within
// Config.Drain after ctx has ended. Then Run returns an error that matches
// [ErrNotReturned]. The lease is neither renewed any more nor released. The
// process should end before another replica leads. With the default times it does
// so if it ends at once.
//
// A [Config] that cannot work is a *[volume.InvalidSpecError]. No request is made
// before that check.
func Run(ctx context.Context, c Config, lead func(ctx context.Context) error) error {
	c, err := complete(c)
	if err != nil {
		return err
	}
	pauses := retry.Pause{First: time.Second, Last: time.Minute}
	for ctx.Err() == nil {
		t := newTerm(c)
		again, err := t.serve(ctx, lead)
		switch {
		case !again:
			return err
		case err == nil:
			continue
		}
		if !t.began.IsZero() && time.Since(t.began) > time.Minute {
			pauses.Reset()
		}
		pause := pauses.Next()
		c.Logger.Warn("the work that was led has failed; the lease was given up", "lease", t.lock.Describe(), "error", err, "campaignsAgainIn", pause)
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
		}
	}
	return nil
}

// term is the time from the beginning of a campaign to the end of the leadership.
type term struct {
	config Config
	lock   *lock
	log    *slog.Logger
	began  time.Time
}

func newTerm(c Config) *term {
	t := &term{config: c, lock: newLock(c)}
	t.log = c.Logger.With("lease", t.lock.Describe(), "identity", c.Identity)
	return t
}

// serve campaigns and leads. It returns whether to campaign again, and the error
// of lead that was not due to its context.
func (t *term) serve(ctx context.Context, lead func(context.Context) error) (again bool, err error) {
	stop, err := t.campaign(ctx)
	if err != nil {
		return false, err
	}
	defer t.lock.close()
	select {
	case <-t.lock.acquired:
	case <-ctx.Done():
		stop()
		t.giveUp(ctx)
		return false, nil
	}
	t.began = time.Now()
	t.log.Info("leads")
	t.config.Health.leads()
	returned, err := t.lead(ctx, lead)
	stop()
	if !returned {
		return false, err
	}
	t.config.Health.left(err)
	switch lost := t.lock.whyLost(); {
	case ctx.Err() != nil:
		t.giveUp(ctx)
		return false, unlessContext(err)
	case lost != nil:
		t.log.Info("leads no more, and campaigns again", "cause", lost, "error", err)
		return true, nil
	}
	t.giveUp(ctx)
	return err != nil, err
}

// unlessContext returns err, or nil if err is due to the context's end.
func unlessContext(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrLost) {
		return nil
	}
	return err
}

// campaign runs client-go's elector, which campaigns for the lease and renews it,
// until stop has returned.
func (t *term) campaign(ctx context.Context) (stop func(), err error) {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: t.lock, Name: t.config.Name,
		LeaseDuration: t.config.LeaseDuration, RenewDeadline: t.config.RenewDeadline, RetryPeriod: t.config.RetryPeriod,
		// The lock decides which replica leads, and for how long.
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return nil, err
	}
	electing, cancel := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), logr.FromSlogHandler(t.log.Handler())))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(electing)
	}()
	return func() {
		cancel()
		<-ended
	}, nil
}

// lead calls lead, waits for it as long as allowed, and reports whether it has
// returned.
func (t *term) lead(ctx context.Context, lead func(context.Context) error) (returned bool, err error) {
	leading, end := context.WithCancelCause(ctx)
	defer end(nil)
	result := make(chan error, 1)
	go func() { result <- lead(leading) }()
	lost, ended := t.lock.lost, ctx.Done()
	var late <-chan time.Time
	var after time.Duration
	for {
		select {
		case err := <-result:
			return true, err
		case <-lost:
			end(t.lock.whyLost())
			after, lost, ended = t.config.Grace, nil, nil
		case <-ended:
			after, ended = t.config.Drain, nil
		case <-late:
			return false, fmt.Errorf("%w: lease %s, %s after its context has ended (%w)", ErrNotReturned, t.lock.Describe(), after, context.Cause(leading))
		}
		t.config.Health.ends()
		late = time.After(after)
	}
}

// giveUp releases the lease after lead has returned.
func (t *term) giveUp(ctx context.Context) {
	if err := t.lock.release(ctx); err != nil {
		t.log.Warn("the lease was not released", "error", err)
		return
	}
	t.log.Info("gave the lease up")
}
