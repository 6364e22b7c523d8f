package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount/sandbox"
)

// foundStatus is where a container begins: anew, or, after a restart of the
// provider, with what the API server last heard of it. Processes do not outlive
// the provider that has started them; held containers have none.
func foundStatus(pod *v1.Pod, c *v1.Container, hold bool) v1.ContainerStatus {
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name != c.Name {
			continue
		}
		s = *s.DeepCopy()
		if s.State.Running != nil && !hold {
			s.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: unknownCode, Reason: "ContainerStatusUnknown",
				Message: "the container's process ended with the virtual kubelet that had started it", StartedAt: s.State.Running.StartedAt,
				FinishedAt: now(), ContainerID: s.ContainerID}}
			s.Ready, s.Started = false, new(bool)
		}
		return s
	}
	return v1.ContainerStatus{Name: c.Name, Image: c.Image, Started: new(bool),
		State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
}

// started, ended, failed and awaitRestart are what can happen to a container.

func started(s *v1.ContainerStatus, pid int) {
	if s.State.Running != nil {
		return // held since before a restart
	}
	keepLast(s)
	if s.LastTerminationState.Terminated != nil {
		s.RestartCount++
	}
	s.State = v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: now()}}
	s.ContainerID, s.Ready, s.Started = fmt.Sprintf("process://%d", pid), true, new(true)
}

func ended(s *v1.ContainerStatus, code int, err error) {
	t := &v1.ContainerStateTerminated{ExitCode: int32(code), Reason: "Completed", FinishedAt: now(), ContainerID: s.ContainerID}
	if s.State.Running != nil {
		t.StartedAt = s.State.Running.StartedAt
	}
	if code != 0 {
		t.Reason = "Error"
	}
	if err != nil {
		t.Message = err.Error()
	}
	s.State, s.Ready, s.Started = v1.ContainerState{Terminated: t}, false, new(bool)
}

func failed(s *v1.ContainerStatus, reason string, err error) {
	keepLast(s)
	s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason, Message: err.Error()}}
}

// cannotRun is an end, too, so that the restart policy decides what comes next.
func cannotRun(s *v1.ContainerStatus, err *sandbox.Error) {
	ended(s, err.ExitCode(), err)
	s.State.Terminated.Reason = "ContainerCannotRun"
}

func awaitRestart(s *v1.ContainerStatus, pause time.Duration) {
	if s.State.Terminated == nil {
		return // it says itself what it waits for
	}
	keepLast(s)
	s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: fmt.Sprintf("back-off %s before it is started again", pause)}}
}

func keepLast(s *v1.ContainerStatus) {
	if s.State.Terminated != nil {
		s.LastTerminationState = s.State
	}
}

// fillIn makes the pod's status of what is known of its volumes and containers.
// l.mu is held.
func (l *life) fillIn(status *v1.PodStatus) {
	status.Reason, status.Message = "", ""
	status.HostIP, status.PodIP = l.provider.processes.address, l.provider.processes.address
	status.HostIPs, status.PodIPs = []v1.HostIP{{IP: status.HostIP}}, []v1.PodIP{{IP: status.PodIP}}
	if status.StartTime == nil {
		status.StartTime = &l.begun
	}
	status.ContainerStatuses = nil
	running, ready, allEnded, allWell := false, true, true, true
	for i := range l.containers {
		s := *l.containers[i].DeepCopy()
		if s.State.Waiting != nil && !l.mounted {
			s.State.Waiting.Message = l.trouble()
		}
		status.ContainerStatuses = append(status.ContainerStatuses, s)
		running = running || s.State.Running != nil || s.LastTerminationState.Terminated != nil
		ready = ready && s.Ready
		allEnded = allEnded && s.State.Terminated != nil
		allWell = allWell && s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
	}
	switch {
	case l.over && allWell:
		status.Phase = v1.PodSucceeded
	case l.over:
		status.Phase = v1.PodFailed
	case running || allEnded:
		status.Phase = v1.PodRunning
	default:
		status.Phase = v1.PodPending
	}
	l.condition(status, v1.PodReadyToStartContainers, l.mounted && !l.over, "VolumesNotMounted", l.trouble())
	l.condition(status, v1.PodInitialized, true, "", "")
	l.condition(status, v1.ContainersReady, ready, "ContainersNotReady", "")
	l.condition(status, v1.PodReady, ready, "ContainersNotReady", "")
}

// trouble says of each volume why it is not mounted yet.
func (l *life) trouble() string {
	var lines []string
	for _, volume := range slices.Sorted(maps.Keys(l.troubles)) {
		lines = append(lines, l.troubles[volume].Error())
	}
	return strings.Join(lines, "; ")
}

// condition sets one condition, which keeps the time of its last change.
func (l *life) condition(status *v1.PodStatus, kind v1.PodConditionType, isTrue bool, reason, message string) {
	c := v1.PodCondition{Type: kind, Status: v1.ConditionTrue}
	if !isTrue {
		c.Status, c.Reason, c.Message = v1.ConditionFalse, reason, message
	}
	since, ok := l.conditions[kind]
	if !ok || since.Status != c.Status {
		since = v1.PodCondition{Status: c.Status, LastTransitionTime: now()}
		l.conditions[kind] = since
	}
	c.LastTransitionTime = since.LastTransitionTime
	i := slices.IndexFunc(status.Conditions, func(o v1.PodCondition) bool { return o.Type == kind })
	if i < 0 {
		status.Conditions = append(status.Conditions, c)
		return
	}
	status.Conditions[i] = c
}

// now has no fractions of a second, as times have at the API server.
func now() metav1.Time { return metav1.Now().Rfc3339Copy() }
