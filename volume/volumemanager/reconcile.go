package volumemanager

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/clocks"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/volumemanager/internal/lifecycle"
)

const (
	// grace is how long an operation that is told to give up may take to say
	// what became of it.
	grace = 2 * time.Second
)

// reconciler brings the actual state to the desired one, one operation after the
// other for each volume.
type reconciler struct {
	entries  *entries
	desired  *desiredStateOfWorld
	actual   *actualStateOfWorld
	status   *publisher
	life     *lifecycle.Lifecycle
	executor *operationExecutor
	// containers is [Config].Containers.
	containers PodContainers
	trace      tracer
}

// schedule has volumes reconciled, until the manager stops. The callers of its methods hold
// the lock of the entries.
type schedule struct {
	queue *work.Queue[*podVolume]
	life  *lifecycle.Lifecycle
}

// resync gives a volume a reason for another operation, at once. It never blocks.
func (q *schedule) resync(s *podVolume) {
	s.resync()
	if !q.life.IsStopped() {
		q.queue.Enqueue(s)
	}
}

// forget lets a volume be reconciled no more, unless there is another reason.
func (q *schedule) forget(s *podVolume) { q.queue.Forget(s) }

// reconcile brings a volume to its desired state, one operation after the other,
// and says when there may be a reason for another. An operation may hang: the
// queue has a goroutine for each volume.
func (r *reconciler) reconcile(ctx context.Context, s *podVolume) work.Result {
	for {
		limit, a := r.begin(ctx, s)
		if a.op == opNone {
			return a.then
		}
		r.finish(s, a, r.operate(limit, s, a))
	}
}

// attempt is what an operation is about, as it was when the operation was decided
// on: the pod may be declared anew, with other volumes, before it has begun.
type attempt struct {
	op         operation
	generation int
	pod        *v1.Pod // of a set-up
	podName    types.NamespacedName
	names      []string    // the pod's volumes that are this directory
	first      bool        // no operation on the volume has ended yet
	then       work.Result // where there is no operation
}

// begin compares a volume's desired with its actual state, and begins one
// operation. That ends with the context, which the volume's giveUp ends too.
func (r *reconciler) begin(ctx context.Context, s *podVolume) (limit context.Context, a attempt) {
	r.entries.Lock()
	defer r.entries.Unlock()
	if r.life.IsStopped() || ctx.Err() != nil {
		return ctx, attempt{}
	}
	now := time.Now()
	s.takeDue(now)
	op := r.decide(s)
	if op == opNone {
		return ctx, attempt{then: s.next(now)}
	}
	r.actual.stopWaiting(s) // it looks for itself
	limit, s.giveUp = context.WithCancelCause(ctx)
	s.doing, s.began, s.unmounted = op, now, false
	a = attempt{op: op, generation: s.generation, podName: s.pod.name, names: s.names, first: s.state == StatePending && s.err == nil}
	if op == opSetUp {
		a.pod = s.pod.pod.Get()
	}
	return limit, a
}

// takeDue makes the end of a pause, or the time of a refresh, a reason for an operation.
func (s *podVolume) takeDue(now time.Time) {
	if isPast(s.refreshAt, now) {
		s.refreshAt = time.Time{}
		s.resync()
	}
	if isPast(s.retryAt, now) {
		s.retryAt = time.Time{}
		s.generation++
	}
}

func isPast(at, now time.Time) bool { return !at.IsZero() && clocks.IsDue(at, now) }

// next says when the volume will have another reason for an operation by itself. It always
// says when, if there is to be one: the pauses are the manager's own, and the queue's pause is
// not used. A refresh waits for a time, which comes by either clock: a token expires while the
// machine sleeps.
func (s *podVolume) next(now time.Time) work.Result {
	switch {
	case s.retryAt.IsZero() && s.refreshAt.IsZero():
		return work.Result{}
	case s.retryAt.IsZero(), !s.refreshAt.IsZero() && s.refreshAt.Before(s.retryAt):
		return work.Result{At: s.refreshAt}
	}
	return work.Result{After: s.retryAt.Sub(now), Reason: s.err}
}

// decide returns a volume's next operation. A volume that neither exists nor is
// wanted is dropped at once.
func (r *reconciler) decide(s *podVolume) operation {
	p := s.pod
	waits := !s.retryAt.IsZero() || s.attempted == s.generation || s.isAwaiting()
	switch {
	case s.IsWanted():
		if !waits {
			return opSetUp
		}
	case p.wanted && s.unused:
		r.actual.rest(s)
	case p.wanted || !r.desired.leaves(p):
	case !s.actual.exists():
		r.actual.drop(s)
	case r.desired.keeps(s):
		r.actual.stopFollowing(s)
	case waits:
	case p.released:
		return opTearDown
	case r.containers != nil:
		return opRelease
	}
	return opNone
}

func (r *reconciler) operate(ctx context.Context, s *podVolume, a attempt) error {
	switch a.op {
	case opSetUp:
		return r.trace.span(ctx, "SetUp", a.podName, s.pod.uid, a.names, func(ctx context.Context) error { return r.executor.setUp(ctx, s, a) })
	case opTearDown:
		return r.trace.span(ctx, "TearDown", a.podName, s.pod.uid, a.names, func(ctx context.Context) error { return r.executor.tearDown(ctx, s) })
	}
	return r.release(ctx, s)
}

// finish notes the outcome of an operation, and tells it.
func (r *reconciler) finish(s *podVolume, a attempt, err error) {
	op, generation := a.op, a.generation
	r.entries.Lock()
	defer r.entries.Unlock()
	now := time.Now()
	if op != opRelease {
		s.took = now.Sub(s.began)
	}
	s.giveUp(nil)
	s.doing, s.giveUp = opNone, nil
	if missing, waits := errors.AsType[*AttachmentError](err); waits {
		r.finishWaiting(s, generation, missing)
		return
	}
	s.attempted = generation
	if op == opRelease && err == nil && s.pod.released { // else the role will call again
		s.pod.resync()
	}
	s.err = err
	if err != nil {
		r.fail(s, op, generation, now)
	} else {
		r.succeed(s, op, generation, now)
	}
	s.ended = op
	r.status.publish(s)
	s.ended = opNone
	s.pod.rest()
	if !s.actual.exists() && r.desired.leaves(s.pod) {
		r.actual.drop(s)
	}
}

func (r *reconciler) succeed(s *podVolume, op operation, generation int, now time.Time) {
	s.backoff.Reset()
	switch op {
	case opSetUp:
		s.applied = generation
		s.enter(StateMounted, now)
	case opTearDown:
		s.enter(StateUnmounted, now)
	}
}

// fail notes a failure and has it repeated: after a pause, or at once if there
// has been another reason since it began, or only when the claim changes, where
// nothing else helps. A volume that is mounted stays so when only its refresh has
// failed.
func (r *reconciler) fail(s *podVolume, op operation, generation int, now time.Time) {
	if !(op == opSetUp && s.state == StateMounted) {
		s.enter(s.failedState(), now)
	}
	if r.life.IsStopped() || s.generation != generation || errors.Is(s.err, ErrWithdrawn) || errors.Is(s.err, claimbinding.ErrUnbound) {
		return
	}
	s.retryAt = now.Add(s.backoff.Fail(work.OperationPause, s.err))
}

// failedState is the state of a volume whose operation has failed.
func (s *podVolume) failedState() VolumeState {
	switch {
	case s.actual.detached != nil:
		return StateDetached
	case errors.Is(s.err, claimbinding.ErrUnbound):
		return StatePending // until the claim is bound, which is watched
	}
	return StateFailed
}

// PodContainers is the role that knows which pods still have containers. A
// volume is torn down only after it has said that the pod's are gone; a
// deletion timestamp or a phase is not enough.
type PodContainers interface {
	// ContainersGone reports whether no container of the pod runs any more or
	// will be started. After an error it is asked again with a back-off.
	ContainersGone(ctx context.Context, podUID types.UID) (bool, error)
	// WatchContainers calls f when the containers of a pod may have gone,
	// until stop is called. f does not block. After stop returns f is not
	// called any more.
	WatchContainers(f func(podUID types.UID)) (stop func())
}

// release asks whether the pod's containers are gone. While they are not, the
// role's next call is waited for.
func (r *reconciler) release(ctx context.Context, s *podVolume) error {
	gone, err := r.containers.ContainersGone(ctx, s.pod.uid)
	if err != nil || !gone {
		return err
	}
	r.entries.Lock()
	defer r.entries.Unlock()
	if r.desired.leaves(s.pod) {
		s.pod.released = true
	}
	return nil
}

// sourceAnswers tries the volumes of a source, or of a server of that name, at once that wait
// after a failure.
func (r *reconciler) sourceAnswers(source string) {
	r.entries.Lock()
	defer r.entries.Unlock()
	for s := range r.entries.volumes() {
		if !s.retryAt.IsZero() && (r.status.healthOf(s).Source == source || s.describe().Source == source) {
			r.entries.schedule.resync(s)
		}
	}
}

// containersChanged is called by the role.
func (r *reconciler) containersChanged(podUID types.UID) {
	r.entries.Lock()
	defer r.entries.Unlock()
	if p := r.entries.pods[podUID]; p != nil && r.desired.leaves(p) {
		p.resync()
	}
}
