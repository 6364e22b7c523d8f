package volumemanager

import (
	"context"
	"errors"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/work"
)

const (
	// firstPause is the pause after an operation's first failure: the kubelet's.
	firstPause = 500 * time.Millisecond

	// grace is how long an operation that is told to give up may take to say
	// what became of it.
	grace = 2 * time.Second
)

// enqueue has the volume reconciled. The caller holds the lock.
func (m *Manager) enqueue(s *podVolume) {
	if s.queued || m.stopping {
		return
	}
	s.queued = true
	m.queue = append(m.queue, s)
	select {
	case m.wake <- struct{}{}:
	default: // awake already
	}
}

// reconcileAll reconciles what is enqueued until ctx ends. It never blocks on
// anything but an empty queue: operations run in goroutines of their own.
func (m *Manager) reconcileAll(ctx context.Context) {
	for {
		select {
		case <-m.wake:
		case <-ctx.Done():
			return
		}
		m.mu.Lock()
		queue := m.queue
		m.queue = nil
		for _, s := range queue {
			s.queued = false
			m.reconcile(ctx, s)
		}
		m.mu.Unlock()
	}
}

// reconcile compares what is wanted of a volume with what there is, and starts
// at most one operation. The caller holds the lock.
func (m *Manager) reconcile(ctx context.Context, s *podVolume) {
	if s.doing != opNone || m.stopping {
		return // it is enqueued again when the operation ends
	}
	op := m.decide(s)
	if op == opNone {
		return
	}
	s.waitForLabel(nil) // it looks for itself
	m.stopWaitingForPod(s)
	limit, cancel := context.WithCancelCause(ctx)
	s.doing, s.began, s.giveUp = op, time.Now(), cancel
	w := attempt{generation: s.generation, pod: s.pod.pod, names: s.names}
	m.running.Add(1)
	go func() {
		defer m.running.Done()
		defer cancel(nil)
		m.finish(s, op, w.generation, m.operate(limit, s, op, w))
	}()
}

// attempt is what an operation is about, as it was when the operation was decided
// on: the pod may be declared anew, with other volumes, before it has begun.
type attempt struct {
	generation int
	pod        *v1.Pod
	names      []string // those of the pod's volumes that are this directory
}

// decide says what is to be done about a volume now. What does not exist and is
// not wanted is dropped at once.
func (m *Manager) decide(s *podVolume) operation {
	p := s.pod
	waits := s.retry != nil || s.attempted == s.generation || s.isAwaiting()
	switch {
	case p.wanted && s.wanted:
		if !waits {
			return opSetUp
		}
	case p.wanted && s.unused:
		m.rest(s)
	case p.wanted || !m.leaves(p):
	case !s.actual.exists():
		m.drop(s)
	case m.keeps(s):
		m.stopFollowing(s)
	case waits:
	case p.released:
		return opTearDown
	case m.config.Containers != nil:
		return opRelease
	}
	return opNone
}

func (m *Manager) operate(ctx context.Context, s *podVolume, op operation, w attempt) error {
	switch op {
	case opSetUp:
		return m.setUp(ctx, s, w)
	case opTearDown:
		return m.tearDown(ctx, s)
	}
	return m.release(ctx, s)
}

// finish takes down what became of an operation.
func (m *Manager) finish(s *podVolume, op operation, generation int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if op != opRelease {
		s.took = now.Sub(s.began)
	}
	s.doing, s.giveUp = opNone, nil
	if m.finishWaiting(s, generation, err) {
		return
	}
	s.attempted = generation
	if op == opRelease && err == nil {
		m.resyncPod(s.pod) // the pod is released, or the role will call again
	}
	s.err = err
	if err != nil {
		m.fail(s, op, generation, now)
	} else {
		m.succeed(s, op, generation, now)
	}
	s.ended = op
	m.publish(s)
	s.ended = opNone
	if !s.actual.exists() && m.leaves(s.pod) {
		m.drop(s)
		return
	}
	m.enqueue(s)
}

func (m *Manager) succeed(s *podVolume, op operation, generation int, now time.Time) {
	s.failures, s.pauses = 0, 0
	switch op {
	case opSetUp:
		s.applied = generation
		m.enter(s, StateMounted, now)
	case opTearDown:
		m.enter(s, StateUnmounted, now)
	}
}

// fail notes a failure and has it repeated: after a pause, or at once if there
// has been another reason since it began, or only when the claim changes, where
// nothing else helps. A volume that is mounted stays so when only its refresh has
// failed.
func (m *Manager) fail(s *podVolume, op operation, generation int, now time.Time) {
	if !(op == opSetUp && s.state == StateMounted) {
		m.enter(s, s.failedState(), now)
	}
	if m.stopping || s.generation != generation || errors.Is(s.err, ErrWithdrawn) || errors.Is(s.err, claimbinding.ErrUnbound) {
		return
	}
	pause := s.pauseAfter(s.err)
	s.failures++
	s.retryAt = now.Add(pause)
	s.retry = time.AfterFunc(pause, func() { m.retryNow(s) })
}

// pauseAfter is how long to wait before the next attempt. A pause until the time that an
// error names does not count: nothing was tried, and what fails then begins where it was.
func (s *podVolume) pauseAfter(err error) time.Duration {
	pause := work.Pause(firstPause, s.pauses+1, err)
	if _, says := volume.RetryAt(err); !says {
		s.pauses++
	}
	return pause
}

// failedState is the state of a volume whose operation has failed.
func (s *podVolume) failedState() VolumeState {
	switch {
	case s.actual.detached != nil:
		return StateDetached
	case errors.Is(s.err, claimbinding.ErrUnbound):
		return StatePending // for whoever binds claims, which is watched
	}
	return StateFailed
}

func (m *Manager) enter(s *podVolume, state VolumeState, now time.Time) {
	if s.state != state {
		s.state, s.since = state, now
	}
}

// retryNow is the end of a pause.
func (m *Manager) retryNow(s *podVolume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.retry == nil {
		return
	}
	s.stopRetry()
	s.generation++
	m.enqueue(s)
}

func (s *podVolume) stopRetry() {
	if s.retry != nil {
		s.retry.Stop()
		s.retry, s.retryAt = nil, time.Time{}
	}
}

// drop forgets a volume of which nothing is left, and the pod with its last one.
func (m *Manager) drop(s *podVolume) {
	p := s.pod
	i := slices.Index(p.volumes, s)
	if i < 0 {
		return
	}
	p.volumes = slices.Delete(p.volumes, i, i+1)
	m.byClaim.note(s)
	m.leave(s)
	s.waitForLabel(nil)
	m.stopWaitingForPod(s)
	s.stopRetry()
	m.stopFollowing(s)
	if s.state != StateUnmounted {
		s.state, s.err, s.since = StateUnmounted, nil, time.Now()
		m.publish(s)
	}
	p.announce()
	if len(p.volumes) == 0 && !p.wanted {
		delete(m.pods, p.uid)
	}
}

// publish tells the subscribers and those that wait. The caller holds the
// lock.
func (m *Manager) publish(s *podVolume) {
	for _, row := range m.rows(s) {
		m.notify(row)
	}
	s.pod.announce()
}
