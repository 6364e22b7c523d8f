package processes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/volume/containermounts"
)

// Runtime runs processes. Its methods are safe for concurrent use.
type Runtime struct {
	ctx  context.Context
	dir  string // where each pod has a directory for its containers' output
	left *leftovers

	mu   sync.Mutex
	runs map[types.UID]map[*run]bool
}

var _ podlife.Runtime = (*Runtime)(nil)

// New returns a runtime that keeps what its containers print below dir. They are killed
// when ctx ends.
func New(ctx context.Context, dir string) (*Runtime, error) {
	left, err := newLeftovers(dir)
	return &Runtime{ctx: ctx, dir: dir, left: left, runs: make(map[types.UID]map[*run]bool)}, err
}

// Check refuses pods that would not be what they ask for.
func (r *Runtime) Check(pod *v1.Pod) error {
	refuse := func(what string) error {
		return fmt.Errorf("pod %s/%s cannot run as processes of this node: %s", pod.Namespace, pod.Name, what)
	}
	if len(pod.Spec.InitContainers) > 0 {
		return refuse("it has init containers")
	}
	if pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers {
		return refuse("hostUsers: false asks for a user namespace, and processes have the machine's users")
	}
	for i := range pod.Spec.Containers {
		switch c := &pod.Spec.Containers[i]; {
		case len(c.Command) == 0:
			return refuse(fmt.Sprintf("container %s has no command of its own, and images are not looked at", c.Name))
		case len(c.VolumeDevices) > 0:
			return refuse(fmt.Sprintf("container %s wants a raw device", c.Name))
		case runsCommands(c):
			return refuse(fmt.Sprintf("container %s has a probe or a hook that runs a command", c.Name))
		case mustNotBeRoot(pod, c) && idsOf(pod, c).UID == 0:
			return refuse(fmt.Sprintf("container %s must not run as root, and says as whom instead (runAsUser) in vain or not at all", c.Name))
		}
	}
	return nil
}

// runsCommands reports whether anything would be executed beside the container's program.
func runsCommands(c *v1.Container) bool {
	for _, p := range []*v1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p != nil && p.Exec != nil {
			return true
		}
	}
	l := c.Lifecycle
	return l != nil && (l.PostStart != nil && l.PostStart.Exec != nil || l.PreStop != nil && l.PreStop.Exec != nil)
}

// MountOptions are all that mounts may ask for.
func (*Runtime) MountOptions(context.Context, *v1.Pod) (containermounts.Options, error) {
	return containermounts.Options{Runtime: containermounts.RuntimeFeatures{RecursiveReadOnly: true, BindMountOptions: true}}, nil
}

// StartPod makes nothing: the node's network is the pod's.
func (r *Runtime) StartPod(context.Context, *v1.Pod) (podlife.Shared, error) {
	return podlife.Shared{}, nil
}

// Found ends what an earlier agent has left, so that there is nothing.
func (r *Runtime) Found(ctx context.Context, pod *v1.Pod) ([]podlife.Found, error) {
	return nil, r.left.end(ctx, pod.UID)
}

// Start starts a process in mount and process namespaces of its own.
func (r *Runtime) Start(ctx context.Context, l podlife.Launch) (podlife.Container, error) {
	if len(l.Devices) > 0 {
		return nil, &podlife.StartError{Reason: "CreateContainerError", Err: errors.New("processes get no raw devices")}
	}
	p, err := r.start(l)
	if err != nil {
		failed := &podlife.StartError{Reason: "RunContainerError", Err: err}
		if program, ok := errors.AsType[*sandbox.Error](err); ok {
			failed.Reason, failed.Code = "ContainerCannotRun", program.ExitCode()
		}
		return nil, failed
	}
	c := &run{runtime: r, pod: l.Pod.UID, name: l.Spec.Name, process: p, ended: make(chan struct{}),
		info: podlife.Info{ID: fmt.Sprintf("process://%d", p.PID()), Started: time.Now()}}
	r.mu.Lock()
	if r.runs[c.pod] == nil {
		r.runs[c.pod] = make(map[*run]bool)
	}
	r.runs[c.pod][c] = true
	r.mu.Unlock()
	go c.follow()
	return c, nil
}

// StopPod kills what runs for a pod.
func (r *Runtime) StopPod(ctx context.Context, pod types.UID) error {
	r.mu.Lock()
	var all []*run
	for c := range r.runs[pod] {
		all = append(all, c)
	}
	r.mu.Unlock()
	for _, c := range all {
		if err := c.Stop(ctx, 0); err != nil {
			return err
		}
	}
	return r.left.end(ctx, pod)
}

// RemovePod removes what a pod's containers have printed.
func (r *Runtime) RemovePod(_ context.Context, pod types.UID) error { return r.left.drop(pod) }

// Pods lists the pods of which there is output.
func (r *Runtime) Pods(context.Context) ([]types.UID, error) { return r.left.pods() }

// run is one process.
type run struct {
	runtime *Runtime
	pod     types.UID
	name    string
	process *sandbox.Process
	info    podlife.Info
	ended   chan struct{}
	code    int
	err     error
}

// follow waits for the end.
func (c *run) follow() {
	c.code, c.err = c.process.Wait()
	c.runtime.left.forget(c.pod, c.name)
	c.runtime.mu.Lock()
	delete(c.runtime.runs[c.pod], c)
	if len(c.runtime.runs[c.pod]) == 0 {
		delete(c.runtime.runs, c.pod)
	}
	c.runtime.mu.Unlock()
	close(c.ended)
}

func (c *run) Info() podlife.Info { return c.info }

// Wait waits for the end of the process, also when ctx ends: then it is killed.
func (c *run) Wait(ctx context.Context) (podlife.Ended, error) {
	<-c.ended
	e := podlife.Ended{Code: c.code, Started: c.info.Started, Finished: time.Now()}
	if c.err != nil {
		e.Message = c.err.Error()
	}
	return e, nil
}

func (c *run) Stop(ctx context.Context, grace time.Duration) error {
	if grace > 0 {
		_ = c.process.Signal(unix.SIGTERM) // which may have ended by itself
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-c.ended:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
	_ = c.process.Signal(os.Kill)
	<-c.ended
	return nil
}

// Exec is refused by Check, for every pod.
func (c *run) Exec(context.Context, []string, time.Duration) (string, int, error) {
	return "", 0, errors.New("nothing is executed beside a process")
}
