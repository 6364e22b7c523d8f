package podlife

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
)

// leastGrace is what a container gets whose preStop hook has used up the grace period, as
// the kubelet has it.
const leastGrace = 2 * time.Second

// run is one run of a container that is being attended.
type run struct {
	*container
	pod   *v1.Pod
	it    Container
	ended chan struct{}
	how   Ended
	err   error
	kill  chan reason // by a probe or a hook
}

// reason says why a container is killed while its pod goes on.
type reason struct {
	message string
	grace   *int64 // nil: the pod's
}

// attend waits for the end of a run, and brings it about when the container is not
// wanted any more, or not well. It returns when the run has ended or ctx has.
func (c *container) attend(ctx context.Context, pod *v1.Pod, it Container, found bool) {
	r := &run{container: c, pod: pod, it: it, ended: make(chan struct{}), kill: make(chan reason, 1)}
	go func() {
		defer close(r.ended)
		r.how, r.err = it.Wait(ctx)
	}()
	probing, stop := context.WithCancel(ctx)
	var probes sync.WaitGroup
	if found || r.postStart(probing) {
		r.probe(probing, &probes)
	}
	select {
	case <-r.ended:
	case why := <-r.kill:
		c.life.pods.Events.Eventf(pod, v1.EventTypeNormal, "Killing", "%s", why.message)
		r.terminate(ctx, why.grace)
	case <-c.wanted.Done():
		if ctx.Err() == nil {
			c.life.pods.Events.Eventf(pod, v1.EventTypeNormal, "Killing", "Stopping container %s", c.spec.Name)
			r.terminate(ctx, nil)
		}
	}
	<-r.ended
	stop()
	probes.Wait()
	if ctx.Err() != nil {
		return // the next start finds what has become of it
	}
	if r.err != nil {
		r.how = Ended{Code: unknownCode, Reason: "ContainerStatusUnknown", Message: r.err.Error()}
	}
	c.set(func(s *v1.ContainerStatus) { hasEnded(s, r.how) })
}

// terminate runs the preStop hook, asks the container to end, and has it killed after
// the grace period, which another deletion can shorten. It returns when the run or ctx
// has ended.
func (r *run) terminate(ctx context.Context, own *int64) {
	begun := time.Now()
	grace := func() (time.Duration, <-chan struct{}) {
		left, changed := r.life.grace()
		if own != nil {
			left = max(0, secondsOf(*own)-time.Since(begun))
		}
		return left, changed
	}
	if left, changed := grace(); r.preStop(ctx, left, changed) {
		inner := grace
		grace = func() (time.Duration, <-chan struct{}) {
			left, changed := inner()
			return max(left, leastGrace), changed
		}
	}
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		left, changed := grace()
		stopping, cancel := context.WithCancel(ctx)
		stopped := make(chan error, 1)
		go func() { stopped <- r.it.Stop(stopping, left) }()
		var err error
		select {
		case err = <-stopped:
		case <-changed:
			cancel()
			<-stopped
		case <-r.ended:
		}
		cancel()
		if err != nil && ctx.Err() == nil {
			r.life.pods.Log.Warn("a container is not stopped", "pod", r.life.name, "container", r.spec.Name, "error", err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-r.ended:
			timer.Stop()
			return
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// postStart runs the hook. While it runs the container counts as not started; if it
// fails, the container is killed.
func (r *run) postStart(ctx context.Context) bool {
	if r.spec.Lifecycle == nil || r.spec.Lifecycle.PostStart == nil {
		return true
	}
	done := make(chan error, 1)
	hooking, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { done <- r.hook(hooking, r.spec.Lifecycle.PostStart) }()
	select {
	case err := <-done:
		if err == nil {
			return true
		}
		r.life.pods.Events.Eventf(r.pod, v1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed: %v", err)
		r.kill <- reason{message: fmt.Sprintf("FailedPostStartHook: container %s is killed", r.spec.Name)}
	case <-r.ended:
		cancel()
		<-done
	case <-r.wanted.Done():
		cancel()
		<-done
	}
	return false
}

// preStop runs the hook for at most the grace period, and reports whether there was one.
func (r *run) preStop(ctx context.Context, grace time.Duration, changed <-chan struct{}) bool {
	if r.spec.Lifecycle == nil || r.spec.Lifecycle.PreStop == nil || grace <= 0 {
		return false
	}
	hooking, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.hook(hooking, r.spec.Lifecycle.PreStop) }()
	var err error
	select {
	case err = <-done:
	case <-r.ended:
		cancel()
		<-done
	case <-changed:
		cancel()
		<-done
	}
	if err != nil && ctx.Err() == nil {
		r.life.pods.Events.Eventf(r.pod, v1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed: %v", err)
	}
	return true
}
