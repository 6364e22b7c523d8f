package volumemanager

import (
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// ErrPodEnded says that a pod's containers have ended for good: its status has the
// phase Succeeded or Failed, and none of them running. Its volumes are not set up;
// [Manager.PutPod] has them torn down.
var ErrPodEnded = errors.New("the pod has ended (phase Succeeded or Failed), so that its volumes are torn down and not set up")

func containerStatuses(pod *v1.Pod) []v1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses)
}

// tellsOfAll reports whether a pod's status names each of its containers, so that
// there is none of which nothing is known.
func tellsOfAll(pod *v1.Pod) bool {
	told := containerStatuses(pod)
	all := true
	volume.EachContainer(pod, func(c *v1.Container, _ string) bool {
		all = slices.ContainsFunc(told, func(s v1.ContainerStatus) bool { return s.Name == c.Name })
		return all
	})
	return all
}

// endPod withdraws a pod that has ended, but does not forget it: its own data may stay
// until it is deleted. The caller holds the lock.
func (m *Manager) endPod(pod *v1.Pod) {
	p := m.pods[pod.UID]
	switch {
	case p != nil:
	case m.hasRecovered():
		return // it has nothing here
	default:
		p = m.pod(pod.UID) // there may be records of it
	}
	gone := m.config.Containers == nil && tellsOfAll(pod)
	if p.ended && (p.released || !gone) {
		return // just so
	}
	p.name, p.pod, p.ended = podName(pod), pod.DeepCopy(), true
	m.withdraw(p, gone)
}

// keeps reports whether a volume's data stays although its pod has ended.
func (m *Manager) keeps(s *podVolume) bool {
	if !s.pod.ended || !m.config.KeepEndedPodData {
		return false
	}
	r := s.actual.record
	return r != nil && r.InlineVolume != nil && r.InlineVolume.EmptyDir != nil
}

// recoverEnded reconciles the recorded volumes of pods that have ended, and forgets
// such pods without records. The caller holds the lock.
func (m *Manager) recoverEnded() {
	for uid, p := range m.pods {
		if !p.ended {
			continue
		}
		if len(p.volumes) == 0 {
			delete(m.pods, uid)
		}
		for _, s := range p.volumes {
			m.resync(s)
		}
	}
}
