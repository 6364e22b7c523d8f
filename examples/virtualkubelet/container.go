package main

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume/containerenv"
)

// container is one container of a pod's life.
type container struct {
	life  *life
	index int // in the pod's spec
}

// The pauses between one end and the next start are the kubelet's.
const (
	firstPause  = 10 * time.Second // unless the config says otherwise
	lastPause   = 5 * time.Minute
	pauseWanes  = 10 * time.Minute // of a run after which the first pause is due again
	unknownCode = 137              // of a container whose end was not seen, as the kubelet's
)

// process is one run of a container.
type process interface {
	Signal(os.Signal) error
	Wait() (code int, err error)
	PID() int
}

// keep runs the container until it has ended for good. Nothing is started once
// starting has ended; with ctx, what runs is killed.
func (c *container) keep(ctx, starting context.Context) {
	first := c.life.provider.processes.firstPause
	pause := retry.Pause{First: first, Last: lastPause}
	for c.mayRun() {
		begun := time.Now()
		c.once(ctx, starting)
		if starting.Err() != nil || !c.mayRun() {
			return
		}
		if time.Since(begun) > pauseWanes {
			pause.Reset()
		}
		wait := pause.Next()
		c.set(func(s *v1.ContainerStatus) { awaitRestart(s, wait) })
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-starting.Done():
			timer.Stop()
			return
		}
	}
}

func (c *container) set(change func(*v1.ContainerStatus)) {
	c.life.set(func() { change(&c.life.containers[c.index]) })
}

// mayRun follows the pod's restart policy.
func (c *container) mayRun() bool {
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	ended := c.life.containers[c.index].State.Terminated
	switch {
	case ended == nil:
		return true
	case c.life.pod.Spec.RestartPolicy == v1.RestartPolicyNever:
		return false
	case c.life.pod.Spec.RestartPolicy == v1.RestartPolicyOnFailure:
		return ended.ExitCode != 0
	}
	return true
}

// once runs the container one time, from its start to its end.
func (c *container) once(ctx, starting context.Context) {
	pod := c.life.snapshot()
	processes := c.life.provider.processes
	spec := &pod.Spec.Containers[c.index]
	process, reason, err := c.start(ctx, starting, pod, spec)
	if err != nil {
		if starting.Err() == nil {
			processes.events.Eventf(pod, v1.EventTypeWarning, "Failed", "container %s: %v", spec.Name, err)
			c.set(func(s *v1.ContainerStatus) { failed(s, reason, err) })
			if program, ok := errors.AsType[*sandbox.Error](err); ok {
				c.set(func(s *v1.ContainerStatus) { cannotRun(s, program) })
			}
		}
		return
	}
	processes.events.Eventf(pod, v1.EventTypeNormal, "Started", "Started container %s", spec.Name)
	c.set(func(s *v1.ContainerStatus) { started(s, process.PID()) })
	code, err := c.wait(process)
	processes.left.forget(pod.UID, spec.Name)
	if ctx.Err() != nil {
		return // it was killed with this provider, which the next one says
	}
	c.set(func(s *v1.ContainerStatus) { ended(s, code, err) })
}

// start asks podvol anew each time: a sub-path may lead to something else by now.
func (c *container) start(ctx, starting context.Context, pod *v1.Pod, spec *v1.Container) (process, string, error) {
	volumes := c.life.provider.volumes
	env, err := containerenv.Resolve(starting, pod, spec, containerenv.Sources{Objects: volumes.client, Allocatable: volumes.size})
	if err != nil {
		return nil, "CreateContainerConfigError", err
	}
	mounts, _, err := volumes.ContainerMounts(starting, pod.UID, spec.Name, mountOptions(env))
	if err != nil {
		return nil, "CreateContainerError", err
	}
	process, err := c.life.provider.processes.start(ctx, pod, spec, env, mounts, volumes.ExtraSupplementalGroups(pod.UID))
	return process, "RunContainerError", err
}

// wait waits for the end of the process, and brings it about when the pod is
// deleted.
func (c *container) wait(p process) (code int, err error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		code, err = p.Wait()
	}()
	select {
	case <-ended:
		return code, err
	case <-c.life.ending:
		_ = p.Signal(unix.SIGTERM) // which may have ended by itself
	}
	select {
	case <-ended:
	case <-c.life.kill:
		_ = p.Signal(unix.SIGKILL)
		<-ended
	}
	return code, err
}
