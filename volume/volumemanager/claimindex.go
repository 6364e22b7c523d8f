package volumemanager

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// claimIndex finds the volumes whose rows name a claim, so that a look-up costs
// what it finds and not the size of the node. The manager's mutex guards it.
type claimIndex map[types.NamespacedName]map[*podVolume]struct{}

// note notes which claim a volume's rows name now. It must be called after each
// change of what they are made of. The caller holds the lock.
func (c claimIndex) note(s *podVolume) {
	var claim types.NamespacedName
	if slices.Contains(s.pod.volumes, s) {
		claim = claimOf(s.describe())
	}
	if claim == s.claim {
		return
	}
	delete(c[s.claim], s)
	if len(c[s.claim]) == 0 {
		delete(c, s.claim)
	}
	if s.claim = claim; claim.Name == "" {
		return
	}
	if c[claim] == nil {
		c[claim] = make(map[*podVolume]struct{})
	}
	c[claim][s] = struct{}{}
}

// ExplainClaim returns those of [Manager.Explain]'s rows whose Claim is the given
// one, in its order. Its cost grows with their number, not with that of all rows.
func (m *Manager) ExplainClaim(claim types.NamespacedName) []VolumeStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []VolumeStatus
	for s := range m.byClaim[claim] {
		all = append(all, m.rows(s)...)
	}
	slices.SortFunc(all, compareStatus)
	return all
}

// ExplainPod returns those of [Manager.Explain]'s rows that are the given pod's, in
// its order. Its cost grows with their number, not with that of all rows.
func (m *Manager) ExplainPod(podUID types.UID) []VolumeStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[podUID]
	if p == nil {
		return nil
	}
	var all []VolumeStatus
	for _, s := range p.volumes {
		all = append(all, m.rows(s)...)
	}
	slices.SortFunc(all, compareStatus)
	return all
}
