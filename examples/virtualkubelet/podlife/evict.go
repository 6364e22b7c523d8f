package podlife

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/ephemeralstorage"
)

const (
	// evictionGrace is what the containers of an evicted pod have to end.
	evictionGrace = time.Second
	// criticalPriority is that of pods that a node cannot do without.
	criticalPriority = 2_000_000_000
)

// Evictable returns the pods that [Pods.Evict] would end.
func (p *Pods) Evictable() (pods []*v1.Pod) {
	for _, l := range p.lives.Range {
		if l := l.(*life); l.isEvictable() {
			pods = append(pods, l.snapshot())
		}
	}
	return pods
}

// Evict ends the containers of a pod at once, so that the pod has failed with the reason
// Evicted. As with the kubelet, neither static nor critical pods are evicted. A pod that
// ends already does so with its own reason.
func (p *Pods) Evict(pod types.UID, message string) {
	l, known := p.life(pod)
	if !known || !l.isEvictable() {
		return
	}
	l.hurry(evictionGrace)
	l.halt(ephemeralstorage.Reason, message)
	p.Events.Event(l.snapshot(), v1.EventTypeWarning, ephemeralstorage.Reason, message)
}

func (l *life) isEvictable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	critical := l.static || l.pod.Spec.Priority != nil && *l.pod.Spec.Priority >= criticalPriority
	return !critical && !l.over && l.halted == nil && l.deadline.IsZero()
}

// fillInDisruption says of an evicted pod that its end is not its own doing. l.mu is held.
func (l *life) fillInDisruption(status *v1.PodStatus) {
	if l.halted == nil || l.halted.reason != ephemeralstorage.Reason {
		return
	}
	l.condition(status, v1.DisruptionTarget, true, "", "")
	for i := range status.Conditions {
		if c := &status.Conditions[i]; c.Type == v1.DisruptionTarget {
			c.Reason, c.Message = v1.PodReasonTerminationByKubelet, l.halted.message
		}
	}
}
