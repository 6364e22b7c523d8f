package podlife

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume/containermounts"
)

const crashLoop = "CrashLoopBackOff"

// statusOf is where a container begins: with what the API server last heard of it, or
// anew.
func statusOf(pod *v1.Pod, kind kind, c *v1.Container) v1.ContainerStatus {
	of := pod.Status.ContainerStatuses
	switch kind {
	case initKind, sidecarKind:
		of = pod.Status.InitContainerStatuses
	case ephemeralKind:
		of = pod.Status.EphemeralContainerStatuses
	}
	for _, s := range of {
		if s.Name == c.Name {
			return *s.DeepCopy()
		}
	}
	s := v1.ContainerStatus{Name: c.Name, Image: c.Image, Started: new(bool)}
	s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	if len(pod.Spec.InitContainers) > 0 && kind != ephemeralKind {
		s.State.Waiting.Reason = "PodInitializing"
	}
	return s
}

// takeOver says what the runtime knows of a container that an earlier agent has started.
// Fresh: it knows nothing of the pod any more, as after a restart of the machine, so that
// init containers run again. life.mu is held.
func (c *container) takeOver(found *Found, fresh bool) {
	s := &c.status
	if found == nil {
		if r := s.State.Running; r != nil {
			hasEnded(s, Ended{Code: unknownCode, Reason: "ContainerStatusUnknown", Started: r.StartedAt.Time, Finished: time.Now(),
				Message: "the container ended with the agent that had started it"})
		}
		if fresh && c.kind == initKind && s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 {
			keepLast(s)
			s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "PodInitializing"}}
		}
		return
	}
	c.found = found
	s.RestartCount = max(s.RestartCount, found.Attempt)
	if s.State.Running == nil || s.ContainerID != found.Info.ID {
		if t := s.State.Terminated; t != nil && t.ContainerID != found.Info.ID {
			s.LastTerminationState = s.State
		}
		hasStarted(s, found.Info)
	}
	s.RestartCount = max(s.RestartCount, found.Attempt)
	if found.Ended != nil {
		hasEnded(s, *found.Ended)
	}
}

// hasStarted, hasEnded, hasFailed and awaitRestart are what can happen to a container.

func hasStarted(s *v1.ContainerStatus, i Info) {
	countRestart(s)
	s.State = v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(i.Started).Rfc3339Copy()}}
	s.ContainerID, s.Image, s.ImageID = i.ID, cmp.Or(i.Image, s.Image), cmp.Or(i.ImageID, s.ImageID)
	s.Ready, s.Started = false, new(bool)
}

// mountStatuses are a container's mounts as they are, by the images of its image volumes.
func mountStatuses(c *v1.Container, mounts []containermounts.Mount, images map[string]string) (all []v1.VolumeMountStatus) {
	for _, m := range c.VolumeMounts {
		s := v1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			isAt := func(mount containermounts.Mount) bool { return mount.Destination == path.Join("/", m.MountPath) }
			i := slices.IndexFunc(mounts, isAt)
			s.RecursiveReadOnly = new(v1.RecursiveReadOnlyDisabled)
			if i >= 0 && mounts[i].RecursiveReadOnly {
				s.RecursiveReadOnly = new(v1.RecursiveReadOnlyEnabled)
			}
		}
		if ref, isImage := images[m.Name]; isImage {
			kubeapi.SetImageRef(&s, ref)
		}
		all = append(all, s)
	}
	return all
}

// countRestart is for a container that is started, or counts as started, another time.
func countRestart(s *v1.ContainerStatus) {
	ended := s.State.Terminated != nil
	keepLast(s)
	if ended || s.LastTerminationState.Terminated != nil && s.State.Running == nil {
		s.RestartCount++
	}
}

func hasEnded(s *v1.ContainerStatus, e Ended) {
	t := &v1.ContainerStateTerminated{ExitCode: int32(e.Code), Signal: int32(e.Signal), Reason: e.Reason, Message: e.Message,
		StartedAt: metav1.NewTime(e.Started).Rfc3339Copy(), FinishedAt: metav1.NewTime(e.Finished).Rfc3339Copy(), ContainerID: s.ContainerID}
	if s.State.Running != nil {
		t.StartedAt = s.State.Running.StartedAt
	}
	if e.Finished.IsZero() {
		t.FinishedAt = now()
	}
	switch {
	case t.Reason != "":
	case e.Code == 0:
		t.Reason = "Completed"
	default:
		t.Reason = "Error"
	}
	s.State, s.Ready, s.Started = v1.ContainerState{Terminated: t}, false, new(bool)
}

func hasFailed(s *v1.ContainerStatus, reason string, err error) {
	keepLast(s)
	s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason, Message: err.Error()}}
}

func awaitRestart(s *v1.ContainerStatus, pause time.Duration, name string, pod types.NamespacedName) {
	if s.State.Terminated == nil {
		return // it says itself what it waits for
	}
	keepLast(s)
	s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: crashLoop,
		Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", pause, name, pod)}}
}

// awaitPull is for a container whose image could not be pulled several times.
func awaitPull(s *v1.ContainerStatus) {
	if w := s.State.Waiting; w != nil && w.Reason == ErrImagePull {
		s.State.Waiting = &v1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: fmt.Sprintf("Back-off pulling image %q: %s: %s", s.Image, w.Reason, w.Message)}
	}
}

func keepLast(s *v1.ContainerStatus) {
	if s.State.Terminated != nil {
		s.LastTerminationState = s.State
	}
}

// runtimeID is the runtime's own part of a container's ID in a status.
func runtimeID(id string) string {
	_, own, found := strings.Cut(id, "://")
	if !found {
		return id
	}
	return own
}
