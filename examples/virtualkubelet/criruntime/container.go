package criruntime

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
)

// Start creates and starts a container in the pod's sandbox.
func (r *Runtime) Start(ctx context.Context, l podlife.Launch) (podlife.Container, error) {
	failed := func(reason string, code int, err error) error {
		return &podlife.StartError{Reason: reason, Code: code, Err: err}
	}
	ids, err := r.idsOf(ctx, l.Pod)
	if err != nil {
		return nil, failed("CreateContainerConfigError", 0, err)
	}
	sandbox, _, err := r.ensureSandbox(ctx, l.Pod)
	if err != nil {
		return nil, failed("CreateContainerError", 0, err)
	}
	shared := r.sandboxConfig(l.Pod, ids, 0)
	image, err := r.image(ctx, l, shared)
	if err != nil {
		return nil, err
	}
	config, err := r.containerConfig(l, ids, image)
	if err != nil {
		return nil, failed("CreateContainerConfigError", 0, err)
	}
	if err := r.removeEarlier(ctx, l); err != nil {
		return nil, failed("CreateContainerError", 0, err)
	}
	if err := r.prepareFiles(l.Pod.UID, l.Spec.Name, l.Attempt); err != nil {
		return nil, failed("CreateContainerError", 0, err)
	}
	created, err := r.service.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sandbox, Config: config, SandboxConfig: shared})
	if err != nil {
		return nil, failed("CreateContainerError", 0, err)
	}
	if err := r.checkStopSignal(ctx, created.ContainerId, config.StopSignal); err != nil {
		return nil, failed("CreateContainerConfigError", 0, err) // the next attempt removes it
	}
	if err := r.startContainer(ctx, created.ContainerId); err != nil {
		return nil, failed("StartError", 128, err)
	}
	c := &run{runtime: r, pod: l.Pod.UID, spec: l.Spec, attempt: l.Attempt, id: created.ContainerId,
		info: podlife.Info{ID: r.name + "://" + created.ContainerId, Image: l.Spec.Image, ImageID: imageID(image), Started: time.Now()}}
	return c, nil
}

// startWait is how long a start that is under way is waited for when it is not wanted any more.
const startWait = 10 * time.Second

// startContainer starts a container that was created. A start that is under way is not cut
// off: the container may run by then, and shall be stopped with its grace period.
func (r *Runtime) startContainer(ctx context.Context, id string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	starting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(startWait)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-starting.Done():
		}
	})
	defer stop()
	_, err := r.service.StartContainer(starting, &cri.StartContainerRequest{ContainerId: id})
	return err
}

// checkStopSignal refuses a stop signal that a created container does not have: an older
// runtime passes over it in silence.
func (r *Runtime) checkStopSignal(ctx context.Context, id string, asked cri.Signal) error {
	if asked == cri.Signal_RUNTIME_DEFAULT {
		return nil
	}
	answer, err := r.service.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
	if err == nil && answer.GetStatus().GetStopSignal() != asked {
		err = fmt.Errorf("lifecycle.stopSignal: %s is not known to its container runtime", asked)
	}
	return err
}

// containers lists a pod's containers.
func (r *Runtime) containers(ctx context.Context, pod types.UID) ([]*cri.Container, error) {
	answer, err := r.service.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: ofPod(pod)}})
	return slices.DeleteFunc(answer.GetContainers(), func(c *cri.Container) bool { return !r.isOwn(c.Labels) }), err
}

// removeEarlier removes the runs before the last one, whose log can still be asked for,
// and one of the same number that never ran.
func (r *Runtime) removeEarlier(ctx context.Context, l podlife.Launch) error {
	all, err := r.containers(ctx, l.Pod.UID)
	if err != nil {
		return err
	}
	for _, c := range all {
		attempt := int32(c.GetMetadata().GetAttempt())
		if c.Labels[containerNameLabel] != l.Spec.Name || attempt == l.Attempt-1 {
			continue
		}
		if _, err := r.service.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.Id}); err != nil && !isNotFound(err) {
			return err
		}
		if err := r.removeRun(l.Pod.UID, l.Spec.Name, attempt); err != nil {
			return err
		}
	}
	return nil
}

// Found returns the last run of each of the pod's containers. One that was created and
// not started is not among them.
func (r *Runtime) Found(ctx context.Context, pod *v1.Pod) (found []podlife.Found, err error) {
	all, err := r.containers(ctx, pod.UID)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b *cri.Container) int {
		return int(b.GetMetadata().GetAttempt()) - int(a.GetMetadata().GetAttempt())
	})
	for _, c := range all {
		name := c.Labels[containerNameLabel]
		spec := specOf(pod, name)
		if spec == nil || c.State == cri.ContainerState_CONTAINER_CREATED || slices.ContainsFunc(found, func(f podlife.Found) bool { return f.Name == name }) {
			continue
		}
		answer, err := r.service.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id})
		if err != nil {
			return nil, err
		}
		s := answer.GetStatus()
		it := &run{runtime: r, pod: pod.UID, spec: spec, attempt: int32(c.GetMetadata().GetAttempt()), id: c.Id,
			info: podlife.Info{ID: r.name + "://" + c.Id, Image: spec.Image, ImageID: s.GetImageRef(), Started: time.Unix(0, s.GetStartedAt())}}
		f := podlife.Found{Name: name, Attempt: it.attempt, Info: it.info}
		if s.GetState() == cri.ContainerState_CONTAINER_RUNNING {
			f.Runs = it
		} else {
			ended := it.endOf(ctx, s)
			f.Ended = &ended
		}
		found = append(found, f)
	}
	return found, nil
}

// specOf returns the container of that name.
func specOf(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return list[i].DeepCopy()
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if e := &pod.Spec.EphemeralContainers[i]; e.Name == name {
			spec := v1.Container(*e.EphemeralContainerCommon.DeepCopy())
			return &spec
		}
	}
	return nil
}

// run is one run of a container.
type run struct {
	runtime *Runtime
	pod     types.UID
	spec    *v1.Container
	attempt int32
	id      string
	info    podlife.Info
}

func (c *run) Info() podlife.Info { return c.info }

// Wait waits for the end.
func (c *run) Wait(ctx context.Context) (podlife.Ended, error) {
	rotating, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { c.keepLogSmall(rotating) })
	defer beside.Wait()
	defer stop()
	select {
	case <-c.runtime.ends.of(c.id):
	case <-ctx.Done():
		c.runtime.ends.forget(c.id)
		return podlife.Ended{}, context.Cause(ctx)
	}
	for {
		answer, err := c.runtime.service.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.id})
		switch {
		case isNotFound(err):
			return podlife.Ended{}, errors.New("the container is gone from its runtime")
		case err == nil:
			return c.endOf(ctx, answer.GetStatus()), nil
		}
		timer := time.NewTimer(time.Second)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return podlife.Ended{}, context.Cause(ctx)
		}
	}
}

// endOf says how a run has ended.
func (c *run) endOf(ctx context.Context, s *cri.ContainerStatus) podlife.Ended {
	return podlife.Ended{Code: int(s.GetExitCode()), Reason: s.GetReason(), Message: c.lastWords(ctx, s),
		Started: time.Unix(0, s.GetStartedAt()), Finished: time.Unix(0, s.GetFinishedAt())}
}

// Stop asks the runtime to stop the container, which waits for the grace period.
func (c *run) Stop(ctx context.Context, grace time.Duration) error {
	_, err := c.runtime.service.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.id, Timeout: int64(math.Ceil(grace.Seconds()))})
	c.runtime.ends.poke()
	if isNotFound(err) {
		return nil
	}
	return err
}

// Exec runs a command in the container.
func (c *run) Exec(ctx context.Context, command []string, timeout time.Duration) (string, int, error) {
	answer, err := c.runtime.service.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: c.id, Cmd: command, Timeout: int64(math.Ceil(timeout.Seconds()))})
	if err != nil {
		return "", 0, fmt.Errorf("command %q: %w", command, err)
	}
	return string(answer.Stdout) + string(answer.Stderr), int(answer.ExitCode), nil
}
