package podlife

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// fillIn makes the pod's status of what is known of its volumes and containers, as the
// kubelet does. l.mu is held.
func (l *life) fillIn(status *v1.PodStatus) {
	if l.over && isOver(l.pod) {
		return // it was over when this agent started, and stays as it is
	}
	l.addresses(status)
	if status.StartTime == nil {
		status.StartTime = &l.begun
	}
	status.Reason, status.Message = "", ""
	status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses = nil, nil, nil
	for _, c := range l.all {
		s := *c.status.DeepCopy()
		if s.State.Waiting != nil && !l.mounted {
			s.State.Waiting.Message = l.trouble()
		}
		switch c.kind {
		case mainKind:
			status.ContainerStatuses = append(status.ContainerStatuses, s)
		case initKind:
			s.Ready = s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
			status.InitContainerStatuses = append(status.InitContainerStatuses, s)
		case sidecarKind:
			status.InitContainerStatuses = append(status.InitContainerStatuses, s)
		case ephemeralKind:
			status.EphemeralContainerStatuses = append(status.EphemeralContainerStatuses, s)
		}
	}
	status.Phase = l.phase()
	switch {
	case l.refused != nil:
		status.Phase, status.Reason, status.Message = v1.PodFailed, "ProviderFailed", l.refused.Error()
		if errors.Is(l.refused, volume.ErrAttachLimitExceeded) {
			status.Reason = volume.AttachLimitExceeded
		}
	case l.halted != nil:
		status.Reason, status.Message = l.halted.reason, l.halted.message
	}
	l.fillInConditions(status)
	l.fillInDisruption(status)
	l.fillInResize(status)
}

func (l *life) addresses(status *v1.PodStatus) {
	status.HostIP, status.HostIPs = l.pods.NodeIP, []v1.HostIP{{IP: l.pods.NodeIP}}
	ips := []string{l.pods.NodeIP}
	switch {
	case l.shared != nil && len(l.shared.IPs) > 0:
		ips = l.shared.IPs
	case l.shared == nil && status.PodIP != "":
		return // known from before
	case l.shared == nil:
		ips = nil
	}
	status.PodIP, status.PodIPs = "", nil
	for _, ip := range ips {
		status.PodIPs = append(status.PodIPs, v1.PodIP{IP: ip})
	}
	if len(ips) > 0 {
		status.PodIP = ips[0]
	}
}

// phase is the kubelet's: Pending until a container has been started, Running until
// none runs or will run again.
func (l *life) phase() v1.PodPhase {
	begun, allWell := false, l.halted == nil
	for _, c := range l.all {
		s := &c.status
		switch c.kind {
		case mainKind:
			begun = begun || s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
			allWell = allWell && s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
		case initKind:
			allWell = allWell && s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
		}
	}
	switch {
	case l.over && allWell:
		return v1.PodSucceeded
	case l.over:
		return v1.PodFailed
	case begun && l.initialised():
		return v1.PodRunning
	}
	return v1.PodPending
}

func (l *life) initialised() bool {
	for _, c := range l.all {
		t := c.status.State.Terminated
		switch {
		case c.kind == initKind && (t == nil || t.ExitCode != 0):
			return false
		case c.kind == sidecarKind && (c.status.Started == nil || !*c.status.Started) && c.status.LastTerminationState.Terminated == nil && t == nil:
			return false
		}
	}
	return true
}

func (l *life) fillInConditions(status *v1.PodStatus) {
	unready, uninitialised := l.unready()
	gate := l.unmetGate()
	l.condition(status, v1.PodReadyToStartContainers, l.mounted && l.shared != nil && !l.over, "VolumesNotMounted", l.trouble())
	done := status.Phase == v1.PodSucceeded
	switch {
	case done:
		l.condition(status, v1.PodInitialized, true, "PodCompleted", "")
	default:
		l.condition(status, v1.PodInitialized, l.initialised(), "ContainersNotInitialized", "containers with incomplete status: "+list(uninitialised))
	}
	reason, message := "ContainersNotReady", "containers with unready status: "+list(unready)
	switch {
	case done:
		reason, message = "PodCompleted", ""
	case status.Phase == v1.PodFailed:
		reason, message = "PodFailed", ""
	}
	ready := len(unready) == 0 && !l.over && status.Phase == v1.PodRunning
	l.condition(status, v1.ContainersReady, ready, reason, message)
	if ready && gate != "" {
		ready, reason, message = false, "ReadinessGatesNotReady", fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist or is not True.", gate)
	}
	l.condition(status, v1.PodReady, ready, reason, message)
}

func list(names []string) string { return fmt.Sprintf("%v", names) }

// unready are the containers that keep the pod from being ready, and uninitialised are
// the init containers that have not done their work.
func (l *life) unready() (unready, uninitialised []string) {
	for _, c := range l.all {
		s := &c.status
		switch {
		case c.kind == initKind && (s.State.Terminated == nil || s.State.Terminated.ExitCode != 0):
			uninitialised = append(uninitialised, c.spec.Name)
		case c.kind == sidecarKind && (s.Started == nil || !*s.Started):
			uninitialised = append(uninitialised, c.spec.Name)
		}
		if (c.kind == mainKind || c.kind == sidecarKind) && !s.Ready {
			unready = append(unready, c.spec.Name)
		}
	}
	return unready, uninitialised
}

// unmetGate is a readiness gate that is not open.
func (l *life) unmetGate() string {
	for _, g := range l.pod.Spec.ReadinessGates {
		if !slices.ContainsFunc(l.pod.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == g.ConditionType && c.Status == v1.ConditionTrue
		}) {
			return string(g.ConditionType)
		}
	}
	return ""
}

// trouble says of each volume why it is not mounted yet, or still.
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
	} else if reason == "PodCompleted" {
		c.Reason = reason
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
