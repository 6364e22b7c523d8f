package election

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lock is the lease for client-go's elector. It records the elector's calls, and
// decides by itself how long the lease is valid.
type lock struct {
	*resourcelock.LeaseLock
	config   Config
	acquired chan struct{} // closed with the first renewal
	lost     chan struct{} // closed when the lease cannot be relied on any more

	mu      sync.Mutex
	renewed time.Time // when the last renewal was sent; zero: none was answered
	wall    time.Time // the same on the wall's clock
	expiry  *time.Timer
	cause   error // why it was lost
	wrote   bool  // it may be held, though no answer has said so
}

var _ resourcelock.Interface = (*lock)(nil)

func newLock(c Config) *lock {
	return &lock{config: c, LeaseLock: leaseOf(c), acquired: make(chan struct{}), lost: make(chan struct{})}
}

func leaseOf(c Config) *resourcelock.LeaseLock {
	return &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name}, Client: c.Client,
		LockConfig: resourcelock.ResourceLockConfig{Identity: c.Identity, EventRecorder: c.Events},
	}
}

// patience limits the time of one request, so that a second one fits into the
// deadline.
func (l *lock) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(time.Second, l.config.RenewDeadline/2))
}

// Get implements the elector's lock.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.checkWall()
	ctx, cancel := l.patience(ctx)
	defer cancel()
	record, raw, err := l.LeaseLock.Get(ctx)
	switch {
	case err == nil:
		l.config.Health.holds(record.HolderIdentity)
		if record.HolderIdentity != l.config.Identity {
			l.lose(fmt.Errorf("%w: it is held by %q", ErrLost, record.HolderIdentity))
		}
	case apierrors.IsNotFound(err):
		l.lose(fmt.Errorf("%w: it has been deleted", ErrLost))
	}
	return record, raw, err
}

// Create implements the elector's lock.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.LeaseLock.Create)
}

// Update implements the elector's lock.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.LeaseLock.Update)
}

func (l *lock) write(ctx context.Context, record resourcelock.LeaderElectionRecord, f func(context.Context, resourcelock.LeaderElectionRecord) error) error {
	l.checkWall()
	l.mu.Lock()
	l.wrote = true
	l.mu.Unlock()
	ctx, cancel := l.patience(ctx)
	defer cancel()
	sent, wall := time.Now(), l.config.wall()
	if err := f(ctx, record); err != nil {
		return err
	}
	l.renew(sent, wall)
	return nil
}

// renew records that a request renewed the lease, and when that was sent.
func (l *lock) renew(sent, wall time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause != nil {
		return // it is renewed only to keep others waiting
	}
	left := l.config.RenewDeadline - time.Since(sent)
	first := l.renewed.IsZero()
	l.renewed, l.wall = sent, wall.Round(0)
	l.config.Health.renewed(l.config.Identity, sent)
	if first {
		l.expiry = time.AfterFunc(left, l.expire)
		close(l.acquired)
		return
	}
	l.expiry.Reset(left)
}

// expire is called when the timer ends. The timer may have been set anew
// meanwhile.
func (l *lock) expire() {
	l.mu.Lock()
	late := time.Since(l.renewed) >= l.config.RenewDeadline
	l.mu.Unlock()
	if late {
		l.lose(fmt.Errorf("%w: it could not be renewed for %s", ErrLost, l.config.RenewDeadline))
	}
}

// checkWall notices time that timers do not count, such as a suspended machine's.
// The wall clock may also have been put forward.
func (l *lock) checkWall() {
	l.mu.Lock()
	passed, leads := l.config.wall().Round(0).Sub(l.wall), !l.renewed.IsZero()
	l.mu.Unlock()
	if leads && passed >= l.config.RenewDeadline {
		l.lose(fmt.Errorf("%w: the clock says that it was renewed %s ago", ErrLost, passed))
	}
}

// lose does nothing before the lease is held, and after it was lost.
func (l *lock) lose(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.renewed.IsZero() && l.cause == nil {
		l.cause = cause
		close(l.lost)
	}
}

func (l *lock) whyLost() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// close ends the timer; the elector has ended before.
func (l *lock) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.expiry != nil {
		l.expiry.Stop()
	}
}

// release releases the lease if it is held. It retries until RenewDeadline. After
// that the lease expires by itself.
func (l *lock) release(ctx context.Context) error {
	if !l.wrote {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), l.config.RenewDeadline,
		fmt.Errorf("not within %s; others wait until it has run out", l.config.RenewDeadline))
	defer cancel()
	for {
		err := l.tryRelease(ctx)
		if err == nil {
			return nil
		}
		pause := time.After(l.config.RetryPeriod)
		if apierrors.IsConflict(err) {
			pause = time.After(0)
		}
		select {
		case <-pause:
		case <-ctx.Done():
			return fmt.Errorf("release the lease %s: %w: %w", l.Describe(), context.Cause(ctx), err)
		}
	}
}

func (l *lock) tryRelease(ctx context.Context) error {
	ctx, cancel := l.patience(ctx)
	defer cancel()
	lease := leaseOf(l.config) // and not the elector's, which may know an old one
	record, _, err := lease.Get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case record.HolderIdentity != l.config.Identity:
		return nil
	}
	now := metav1.Now()
	err = lease.Update(ctx, resourcelock.LeaderElectionRecord{LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now})
	if err == nil {
		l.config.Health.holds("")
	}
	return err
}

// ErrLost is the cause of the end of lead's context, unless Run's context ended.
// Another replica holds the lease, or it is no longer known whether this one
// does.
var ErrLost = errors.New("the lease was lost")
