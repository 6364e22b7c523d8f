package podlife

import (
	"context"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/retry"
)

// kind says when a container runs, and what its end means.
type kind int

const (
	mainKind kind = iota
	initKind
	sidecarKind // a restartable init container
	ephemeralKind
)

// container is one container of a pod's life.
type container struct {
	life   *life
	kind   kind
	spec   *v1.Container
	target string // the container whose processes an ephemeral one sees

	wanted context.Context // ended: it shall not run any more
	stop   context.CancelFunc
	// started is closed when the container has started for the first time, by its
	// startup probe if it has one.
	started chan struct{}
	start   func() // closes it
	ended   chan struct{}
	// news holds a value when a failed start may succeed by now.
	news    chan struct{}
	awaited awaited // by keep, which alone uses it

	// These are guarded by life.mu.
	status v1.ContainerStatus
	found  *Found // by this start of the agent
	begun  bool   // keep runs, or has run
}

// The pauses between one end and the next start are the kubelet's.
const (
	lastPause   = 5 * time.Minute
	pauseWanes  = 10 * time.Minute // of a run after which the first pause is due again
	unknownCode = 137              // of a container whose end was not seen, as the kubelet's
)

// containersOf makes the containers of a pod, in the order of its spec.
func containersOf(l *life, pod *v1.Pod) (all []*container) {
	for i := range pod.Spec.InitContainers {
		spec, kind := &pod.Spec.InitContainers[i], initKind
		if p := spec.RestartPolicy; p != nil && *p == v1.ContainerRestartPolicyAlways {
			kind = sidecarKind
		}
		all = append(all, newContainer(l, pod, kind, spec, ""))
	}
	for i := range pod.Spec.Containers {
		all = append(all, newContainer(l, pod, mainKind, &pod.Spec.Containers[i], ""))
	}
	for i := range pod.Spec.EphemeralContainers {
		all = append(all, newEphemeral(l, pod, &pod.Spec.EphemeralContainers[i]))
	}
	return all
}

func newContainer(l *life, pod *v1.Pod, kind kind, spec *v1.Container, target string) *container {
	c := &container{life: l, kind: kind, spec: spec.DeepCopy(), target: target, started: make(chan struct{}), ended: make(chan struct{}), status: statusOf(pod, kind, spec),
		news: make(chan struct{}, 1)}
	c.start = sync.OnceFunc(func() { close(c.started) })
	parent := l.starting
	if kind == sidecarKind { // it goes on until the others have ended
		parent = l.pods.ctx
	}
	c.wanted, c.stop = context.WithCancel(parent)
	return c
}

func newEphemeral(l *life, pod *v1.Pod, e *v1.EphemeralContainer) *container {
	spec := v1.Container(e.EphemeralContainerCommon)
	return newContainer(l, pod, ephemeralKind, &spec, e.TargetContainerName)
}

// addEphemeral takes over ephemeral containers that were added. l.mu is held.
func (l *life) addEphemeral(pod *v1.Pod) (added bool) {
	for i := range pod.Spec.EphemeralContainers {
		e := &pod.Spec.EphemeralContainers[i]
		if !slices.ContainsFunc(l.all, func(c *container) bool { return c.spec.Name == e.Name }) {
			l.all = append(l.all, newEphemeral(l, pod, e))
			added = true
		}
	}
	return added
}

// keep runs the container until it has ended for good or ctx has ended. Nothing is
// started once it is not wanted.
func (c *container) keep(ctx context.Context) {
	c.markBegun()
	defer close(c.ended)
	defer c.stop()
	pause := retry.Pause{First: c.life.pods.FirstPause, Last: lastPause}
	again := false // the first restart comes at once
	defer c.stopAwaiting()
	for c.runsNow() || c.wanted.Err() == nil && c.mayRun() {
		begun := time.Now()
		c.forgetNews()
		run := c.once(ctx)
		if ctx.Err() != nil || c.wanted.Err() != nil || !c.mayRun() {
			return
		}
		if time.Since(begun) > pauseWanes {
			pause.Reset()
			again = false
		}
		if run && !again {
			again = true
			continue
		}
		if !c.pause(pause.Next()) {
			return
		}
	}
}

// pause waits before the next start, or until there is a new reason for one. It returns
// false where the container is not wanted any more.
func (c *container) pause(wait time.Duration) bool {
	c.set(func(s *v1.ContainerStatus) {
		awaitRestart(s, wait, c.spec.Name, c.life.name)
		if wait > c.life.pods.FirstPause {
			awaitPull(s)
		}
	})
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.news:
	case <-c.wanted.Done():
		return false
	}
	return true
}

func (c *container) set(change func(*v1.ContainerStatus)) {
	c.life.set(func() { change(&c.status) })
}

// markBegun returns true for the first call.
func (c *container) markBegun() (first bool) {
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	first = !c.begun
	c.begun = true
	return first
}

func (c *container) waitIfBegun() {
	c.life.mu.Lock()
	begun := c.begun
	c.life.mu.Unlock()
	if begun {
		<-c.ended
	}
}

// wasFound reports whether the container has been started before.
func (c *container) wasFound() bool {
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	return c.found != nil
}

// runsNow reports whether an earlier agent has left it running.
func (c *container) runsNow() bool {
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	return c.found != nil && c.found.Runs != nil
}

func (c *container) endedWell() bool {
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	return c.status.State.Terminated != nil && c.status.State.Terminated.ExitCode == 0
}

// mayRun follows the restart policies.
func (c *container) mayRun() bool {
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	ended := c.status.State.Terminated
	if ended == nil {
		ended = c.status.LastTerminationState.Terminated
		if c.status.State.Waiting == nil || c.status.State.Waiting.Reason != crashLoop {
			ended = nil
		}
	}
	policy := c.life.pod.Spec.RestartPolicy
	if c.kind == mainKind && c.spec.RestartPolicy != nil {
		policy = v1.RestartPolicy(*c.spec.RestartPolicy)
	}
	switch {
	case ended == nil, c.kind == sidecarKind:
		return true
	case c.kind == ephemeralKind, policy == v1.RestartPolicyNever:
		return false
	case c.kind == initKind, policy == v1.RestartPolicyOnFailure:
		return ended.ExitCode != 0
	}
	return true
}

// once runs the container one time, from its start to its end, or takes up the run
// that was found. It returns false where the container was not started.
func (c *container) once(ctx context.Context) (run bool) {
	if found := c.takeUp(); found != nil {
		c.attend(ctx, c.life.snapshot(), found, true)
		return true
	}
	pod := c.life.snapshot()
	running, err := c.launch(pod)
	if err != nil {
		if c.wanted.Err() == nil {
			return c.notStarted(pod, err)
		}
		return false
	}
	c.stopAwaiting()
	c.life.pods.Events.Eventf(pod, v1.EventTypeNormal, "Started", "Started container %s", c.spec.Name)
	c.set(func(s *v1.ContainerStatus) { hasStarted(s, running.Info()) })
	c.attend(ctx, pod, running, false)
	return true
}

// takeUp returns the run that was found, once.
func (c *container) takeUp() Container {
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	if c.found == nil {
		return nil
	}
	runs := c.found.Runs
	c.found.Runs = nil
	return runs
}

// attempt is the number of the next run.
func (c *container) attempt() int32 {
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	next := c.status.DeepCopy()
	countRestart(next)
	return next.RestartCount
}

// idOf returns the ID of a container of the pod in its runtime.
func (l *life) idOf(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.all {
		if name != "" && c.spec.Name == name {
			return runtimeID(c.status.ContainerID)
		}
	}
	return ""
}
