package podlife

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
)

// life is one pod from its creation to its deletion.
type life struct {
	pods   *Pods
	uid    types.UID
	name   types.NamespacedName
	begun  metav1.Time
	static bool // the API server has only a mirror of it

	starting     context.Context // ended: nothing is started any more, and what runs shall end
	stopStarting context.CancelFunc
	ending       chan struct{} // closed: the pod was deleted
	beginEnd     func()        // closes it

	unfit      error // why nothing of the pod is started here; what another agent has started goes on
	objectGone bool  // Pods.mu: the API server has it no more

	mu       sync.Mutex
	pod      *v1.Pod // as the API server last had it
	all      []*container
	troubles map[string]error // of volumes that could not be mounted yet, or not be unmounted
	mounted  bool
	shared   *Shared // nil: not yet

	lastServices []v1.Service // that a container was told of
	hasServices  bool         // they were listed once

	resize      *string     // why containers keep their resources; empty: none shall have others; nil: nobody has asked
	resizeSince metav1.Time // it is so

	conditions map[v1.PodConditionType]v1.PodCondition
	halted     *halt         // why it ends, unless it was deleted
	refused    error         // the pod is unfit or the node has no room for its volumes, and nothing of it runs
	takenOver  bool          // the pod is unfit, and goes on
	over       bool          // no container runs or ever will
	finished   bool          // nothing is left
	deadline   time.Time     // of the containers of a deleted or evicted pod
	hurried    chan struct{} // closed when the deadline changes
	changed    chan struct{} // there is something to report; nil in the end
	ephemeral  chan struct{} // there may be new ephemeral containers
}

// halt is why a pod ends though it was not deleted.
type halt struct{ reason, message string }

func newLife(p *Pods, pod *v1.Pod) *life {
	l := &life{pods: p, uid: pod.UID, name: nameOf(pod), begun: now(), static: isStatic(pod), pod: pod.DeepCopy(), troubles: make(map[string]error),
		conditions: make(map[v1.PodConditionType]v1.PodCondition), over: isOver(pod), ending: make(chan struct{}),
		hurried: make(chan struct{}), changed: make(chan struct{}, 1), ephemeral: make(chan struct{}, 1)}
	l.starting, l.stopStarting = context.WithCancel(p.ctx)
	l.beginEnd = sync.OnceFunc(func() { close(l.ending); l.stopStarting() })
	for _, c := range pod.Status.Conditions {
		l.conditions[c.Type] = c
	}
	l.all = containersOf(l, pod)
	return l
}

// run lives until the pod is gone for good, or ctx ends. Then the next start finds the
// pod at the API server, its containers in the runtime, and its volumes where they are.
func (l *life) run(ctx context.Context) {
	defer l.stopStarting()
	reported := make(chan struct{})
	go func(changed <-chan struct{}) {
		defer close(reported)
		for range changed {
			l.store(ctx)
		}
	}(l.changed)
	l.set(func() {})
	gone := l.live(ctx) && l.unmount(ctx)
	l.mu.Lock()
	close(l.changed)
	l.changed = nil
	l.mu.Unlock()
	<-reported
	if !gone || !l.store(ctx) {
		return
	}
	first, then := l.deleteObject, l.removeRest // logs can be asked for as long as there is an object
	if l.static {
		first, then = then, first // the API server may be away
	}
	if first(ctx) && then(ctx) {
		l.pods.finish(l)
	}
}

// removeRest removes what the runtime has of the pod.
func (l *life) removeRest(ctx context.Context) bool {
	return l.pods.until(ctx, "what is left of a pod is not removed", func() error { return l.pods.Runtime.RemovePod(ctx, l.uid) })
}

// live returns true when the pod was deleted and none of its containers runs any more.
func (l *life) live(ctx context.Context) bool {
	if !l.over {
		stop := l.enforceDeadline()
		l.work(ctx)
		stop()
	}
	if ctx.Err() != nil {
		return false
	}
	if !l.pods.until(ctx, "the containers of a pod do not end", func() error { return l.pods.Runtime.StopPod(ctx, l.uid) }) {
		return false
	}
	l.set(func() { l.over = true })
	l.pods.volumes.DeletePod(l.uid)
	l.pods.tellGone(l.uid)
	select {
	case <-l.ending:
		return true
	case <-ctx.Done():
		return false
	}
}

// unmount returns true when nothing of its volumes is left in the pod.
func (l *life) unmount(ctx context.Context) bool {
	l.pods.volumes.DeletePod(l.uid)
	return l.pods.until(ctx, "the volumes of a pod are not unmounted", func() error { return l.pods.volumes.WaitForUnpublished(ctx, l.uid) })
}

// work runs the pod's containers, and returns when none of them runs any more, or ctx
// has ended.
func (l *life) work(ctx context.Context) {
	if !l.find(ctx) || !l.mayGoOn() {
		return
	}
	if l.starting.Err() == nil && !l.prepare() && (ctx.Err() != nil || l.isRefused()) {
		return
	}
	keeping := &keeping{life: l, ctx: ctx}
	keeping.run()
}

// mayGoOn refuses an unfit pod, unless an earlier agent has left containers of it running:
// they are the work of their users, and go on until they end.
func (l *life) mayGoOn() bool {
	if l.unfit == nil {
		return true
	}
	if !l.runsAlready() {
		l.set(func() { l.refused = l.unfit })
		return false
	}
	l.set(func() { l.takenOver = true })
	pod := l.snapshot()
	l.pods.Events.Eventf(pod, v1.EventTypeWarning, "FailedTakeOver", "What runs of the pod goes on, but none of its containers is started here: %v", l.unfit)
	if err := l.pods.volumes.PutPod(pod); err != nil {
		l.pods.Log.Warn("the volumes of a pod that goes on are not kept", "pod", l.name, "error", err)
	}
	return true
}

// runsAlready reports whether an earlier agent has left a container running.
func (l *life) runsAlready() bool {
	l.mu.Lock()
	all := slices.Clone(l.all)
	l.mu.Unlock()
	return slices.ContainsFunc(all, (*container).runsNow)
}

// find takes over what an earlier agent has started.
func (l *life) find(ctx context.Context) bool {
	var found []Found
	pod := l.snapshot()
	if !l.pods.until(ctx, "what runs of a pod is not known", func() (err error) {
		found, err = l.pods.Runtime.Found(ctx, pod)
		return err
	}) {
		return false
	}
	l.set(func() {
		for _, c := range l.all {
			i := slices.IndexFunc(found, func(f Found) bool { return f.Name == c.spec.Name })
			if i < 0 {
				c.takeOver(nil, len(found) == 0)
				continue
			}
			c.takeOver(&found[i], false)
		}
	})
	return true
}

func (l *life) isRefused() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused != nil
}

// mount returns true when all volumes are mounted. A pod for whose volumes the node has no room
// is refused, as by the kubelet, unless containers of it run already.
func (l *life) mount() bool {
	pause := retry.Pause{First: min(time.Second, l.pods.FirstPause), Last: time.Minute}
	for {
		err := l.pods.volumes.WaitForMounted(l.starting, l.uid)
		if err == nil {
			l.set(func() { l.mounted = true })
			return true
		}
		if l.starting.Err() != nil || !errors.Is(err, volume.ErrAttachLimitExceeded) {
			return false
		}
		if !l.runsAlready() {
			l.set(func() { l.refused = err })
			l.pods.Events.Event(l.snapshot(), v1.EventTypeWarning, volume.AttachLimitExceeded, err.Error())
			return false
		}
		if !pause.Wait(l.starting) {
			return false
		}
	}
}

// prepare returns true when all volumes are mounted, and what the containers share is
// there.
func (l *life) prepare() bool {
	if !l.mount() {
		return false
	}
	pause := retry.Pause{First: min(time.Second, l.pods.FirstPause), Last: time.Minute}
	for {
		pod := l.snapshot()
		shared, err := l.pods.Runtime.StartPod(l.starting, pod)
		if err == nil {
			l.set(func() { l.shared = &shared })
			return true
		}
		if l.starting.Err() != nil {
			return false
		}
		l.pods.Events.Eventf(pod, v1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: %v", err)
		if !pause.Wait(l.starting) {
			return false
		}
	}
}

// enforceDeadline ends the pod after its activeDeadlineSeconds.
func (l *life) enforceDeadline() (stop func()) {
	pod := l.snapshot()
	seconds := pod.Spec.ActiveDeadlineSeconds
	if seconds == nil {
		return func() {}
	}
	due := pod.Status.StartTime.Add(secondsOf(*seconds))
	timer := time.AfterFunc(time.Until(due), func() {
		l.halt("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
	})
	return func() { timer.Stop() }
}

// halt ends the pod's containers, so that the pod has failed.
func (l *life) halt(reason, message string) {
	l.set(func() { l.halted = &halt{reason, message} })
	l.stopStarting()
}

// end is for a deleted pod: its containers shall have ended after the grace period. A
// later call can shorten it.
func (l *life) end(grace time.Duration) {
	l.hurry(grace)
	l.beginEnd()
}

// hurry gives the containers at most this long to end, once they shall.
func (l *life) hurry(grace time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if due := time.Now().Add(grace); l.deadline.IsZero() || due.Before(l.deadline) {
		l.deadline = due
		close(l.hurried)
		l.hurried = make(chan struct{})
	}
}

// grace is how long a container that shall end may still take, and is told anew when
// changed is closed.
func (l *life) grace() (left time.Duration, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deadline.IsZero() {
		return gracePeriod(l.pod), l.hurried
	}
	return max(0, time.Until(l.deadline)), l.hurried
}

// set changes what the pod's status says, and has it reported.
func (l *life) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	select {
	case l.changed <- struct{}{}:
	default: // a report is due already, or there will be none any more
	}
}

// update takes the pod as the API server has it now, and reports whether its volumes
// may be concerned.
func (l *life) update(pod *v1.Pod) bool {
	var refused string
	l.set(func() {
		l.pod = pod.DeepCopy()
		refused = l.refuseResize()
		if l.addEphemeral(l.pod) {
			select {
			case l.ephemeral <- struct{}{}:
			default:
			}
		}
	})
	if refused != "" {
		l.pods.Events.Event(pod, v1.EventTypeWarning, "ResizeInfeasible", refused)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.over && (l.unfit == nil || l.takenOver) && l.starting.Err() == nil
}

// volumeChanged is told of every attempt at one of the pod's volumes.
func (l *life) volumeChanged(volume, operation string, err error) {
	l.set(func() {
		if err == nil {
			delete(l.troubles, volume)
			l.hearNews()
			return
		}
		l.troubles[volume] = err
	})
	if err != nil && operation == "tear-down" {
		l.pods.Events.Eventf(l.snapshot(), v1.EventTypeWarning, "FailedUnMount", "Unmounting volume %q failed, and is tried again: %v", volume, err)
	}
}

func (l *life) isOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

func (l *life) isFinished() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.finished
}

// snapshot is the pod as it is now.
func (l *life) snapshot() *v1.Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	pod := l.pod.DeepCopy()
	l.fillIn(&pod.Status)
	return pod
}

// now has no fractions of a second, as times have at the API server.
func now() metav1.Time { return metav1.Now().Rfc3339Copy() }
