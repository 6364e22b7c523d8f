package volumemanager

import (
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// groupOfVolume is the annotation of a PersistentVolume whose files belong to a
// group (Kubernetes' VolumeGidAnnotationKey).
const groupOfVolume = "pv.beta.kubernetes.io/gid"

// ExtraSupplementalGroups returns the groups that the containers of a declared pod
// must have besides those of its securityContext, sorted: those that its
// PersistentVolumes name in the annotation pv.beta.kubernetes.io/gid, as with the
// kubelet. A volume that is not mounted yet does not count, so ask after
// [Manager.SetUpPod]; what is no group id counts for nothing. Nil: none, or the
// pod is not declared. The result is the caller's.
func (m *Manager) ExtraSupplementalGroups(podUID types.UID) (groups []int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[podUID]
	if p == nil || p.pod == nil || !p.wanted {
		return nil
	}
	for _, s := range p.volumes {
		if !s.wanted || s.state != StateMounted || s.actual.record == nil || s.actual.record.PersistentVolume == nil {
			continue
		}
		group, err := strconv.ParseUint(s.actual.record.PersistentVolume.Annotations[groupOfVolume], 10, 32)
		if err == nil && !hasGroup(p.pod, int64(group)) {
			groups = append(groups, int64(group))
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

func hasGroup(pod *v1.Pod, group int64) bool {
	sc := pod.Spec.SecurityContext
	return sc != nil && slices.Contains(sc.SupplementalGroups, group)
}
