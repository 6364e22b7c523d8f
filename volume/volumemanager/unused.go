package volumemanager

import (
	"slices"
	"time"
)

// rest ends all work on a volume that no container uses: no attempt, no refresh, no
// watch, and no wait for others. What is mounted stays, as with the kubelet, and goes
// with the pod. It is idempotent. The caller holds the lock.
func (m *Manager) rest(s *podVolume) {
	s.stopRetry()
	if s.doing != opNone {
		return // it is reconciled again when the operation ends
	}
	m.stopFollowing(s)
	s.waitForLabel(nil)
	m.stopWaitingForPod(s)
	if !s.actual.exists() {
		m.leave(s)
		s.shown = nil
		m.byClaim.note(s)
	}
	s.failures, s.pauses, s.err = 0, 0, nil
	if s.state == StateMounted || s.state == StateUnused || s.actual.unreadable != nil || s.actual.detached != nil {
		return
	}
	m.enter(s, StateUnused, time.Now())
	m.publish(s)
}

// stopFollowing stops the timer and the watches that would set a volume up again, while
// no operation is under way. The caller holds the lock.
func (m *Manager) stopFollowing(s *podVolume) {
	if s.refresh != nil {
		s.refresh.Stop()
		s.refresh = nil
	}
	if len(s.watches) > 0 {
		watches := s.watches
		s.watches = nil
		m.running.Go(func() { stopAll(watches) }) // stopping may wait for a call that waits for the lock
	}
}

// dropUnused forgets the volumes that no container has used and that a pod, as it
// was declared now, does not have any more. The caller holds the lock.
func (m *Manager) dropUnused(p *podState) {
	for _, s := range slices.Clone(p.volumes) {
		if s.state == StateUnused && !s.wanted && !s.unused && !s.actual.exists() {
			m.drop(s)
		}
	}
}
