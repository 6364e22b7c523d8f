package volumemanager

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
)

// Metrics measures one of a pod's volumes, by its name in the pod, and returns
// promptly when ctx ends: its server may not answer, and costs one thread then
// however often it is asked. The error matches [mount.ErrNotMounted] where the
// volume is not mounted, and [volume.ErrMetricsUnsupported] where volumes of its
// kind have no metrics, as block volumes do not.
func (m *Manager) Metrics(ctx context.Context, podUID types.UID, volumeName string) (*volume.Metrics, error) {
	record, pod := m.mountedRecord(podUID, volumeName)
	if record == nil {
		return nil, &volume.Error{Op: "GetMetrics", Volume: volumeName, PodUID: podUID, Err: mount.ErrNotMounted}
	}
	if record.Spec().IsBlock() {
		return nil, wrap(record, volumeName, "GetMetrics", volume.ErrMetricsUnsupported)
	}
	plugin, err := m.plugins.FindPluginByName(record.Plugin)
	if err != nil {
		return nil, wrap(record, volumeName, "GetMetrics", err)
	}
	mounter, err := plugin.NewMounter(record.Spec(), pod)
	if err != nil {
		return nil, wrap(record, volumeName, "GetMetrics", err)
	}
	metrics, err := mounter.GetMetrics(ctx)
	return metrics, wrap(record, volumeName, "GetMetrics", err)
}

// mountedRecord returns the record of a volume that is mounted, nil if it is
// not, and its pod, of which only the name may be known.
func (m *Manager) mountedRecord(podUID types.UID, volumeName string) (*mountrecord.Record, *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[podUID]
	s := p.find(func(s *podVolume) bool {
		return s.state == StateMounted && s.actual.record != nil && slices.Contains(s.names, volumeName)
	})
	if s == nil {
		return nil, nil
	}
	pod := p.pod
	if pod == nil { // not declared since the start
		pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.name.Namespace, Name: p.name.Name, UID: p.uid}}
	}
	return s.actual.record, pod
}

func persistentVolumeOf(r *mountrecord.Record) string {
	if r.PersistentVolume == nil {
		return ""
	}
	return r.PersistentVolume.Name
}

// claimOf is the claim that a recorded volume was mounted for.
func claimOf(r *mountrecord.Record) types.NamespacedName {
	if r.PersistentVolume == nil || r.PersistentVolume.Spec.ClaimRef == nil {
		return types.NamespacedName{}
	}
	ref := r.PersistentVolume.Spec.ClaimRef
	return types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
}
