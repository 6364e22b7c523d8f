package volumemanager

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
)

// Metrics measures one of a pod's volumes, by its name in the pod, and returns promptly when
// ctx ends: its server may not answer, and costs one thread then however often it is asked.
//
//   - The error matches [mount.ErrNotMounted] where the volume is not mounted, and
//     [volume.ErrMetricsUnsupported] where volumes of its kind have no metrics.
//   - There may be metrics beside an error, as [volume.MetricsProvider] says.
//   - The condition that they tell is in the status of all pods' volumes that are this one. When
//     it turns abnormal, or is so in another way, the pods get the event
//     VolumeConditionAbnormal, as the kubelet's did. Nothing else asks for it.
func (m *Manager) Metrics(ctx context.Context, podUID types.UID, volumeName string) (*volume.Metrics, error) {
	record, pod := m.mountedRecord(podUID, volumeName)
	if record == nil {
		return nil, &volume.Error{Op: "GetMetrics", Volume: volumeName, PodUID: podUID, Err: mount.ErrNotMounted}
	}
	provider, err := m.measures(record, pod)
	if err != nil {
		return nil, wrap(record, volumeName, "GetMetrics", err)
	}
	metrics, err := provider.GetMetrics(ctx)
	if metrics != nil && metrics.Condition != nil {
		m.noteCondition(podUID, record, *metrics.Condition)
	}
	return metrics, wrap(record, volumeName, "GetMetrics", err)
}

// measures returns what measures a mounted volume.
func (m *Manager) measures(r *mountrecord.Record, pod *v1.Pod) (volume.MetricsProvider, error) {
	plugin, err := m.plugins.FindPluginByName(r.Plugin)
	if err != nil {
		return nil, err
	}
	if !r.Spec().IsBlock() {
		return plugin.NewMounter(r.Spec(), pod)
	}
	able, err := devices.BlockPlugin(plugin, r.Spec())
	if err != nil {
		return nil, err
	}
	return able.NewBlockVolumeMapper(r.Spec(), pod)
}

// mountedRecord returns the record of a volume that is mounted, nil if it is
// not, and its pod, of which only the name may be known.
func (m *Manager) mountedRecord(podUID types.UID, volumeName string) (*mountrecord.Record, *v1.Pod) {
	m.entries.Lock()
	defer m.entries.Unlock()
	p := m.entries.pods[podUID]
	s := p.find(func(s *podVolume) bool {
		return s.state == StateMounted && s.actual.record != nil && slices.Contains(s.names, volumeName)
	})
	if s == nil {
		return nil, nil
	}
	pod := p.pod.Get()
	if pod == nil { // not declared since the start
		pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.name.Namespace, Name: p.name.Name, UID: p.uid}}
	}
	return s.actual.record, pod
}

// abnormal is what a pod is told of the condition of its volumes.
type abnormal struct {
	pod   *v1.Pod
	names []string
}

// noteCondition has the status of the volumes that are a recorded one say its condition, and
// tells their pods. The sink may call the manager, so it is called without the lock.
func (m *Manager) noteCondition(podUID types.UID, r *mountrecord.Record, c volume.Condition) {
	var tell []abnormal
	m.entries.Lock()
	for _, s := range m.sharing(podUID, r) {
		if s.condition != nil && *s.condition == c {
			continue
		}
		s.condition = &c
		m.status.publish(s)
		if c.Abnormal && s.pod.pod.IsSet() {
			tell = append(tell, abnormal{s.pod.pod.Get(), slices.Clone(s.names)})
		}
	}
	m.entries.Unlock()
	if m.config.Events == nil {
		return
	}
	for _, a := range tell {
		for _, name := range a.names {
			m.config.Events.Event(a.pod, v1.EventTypeWarning, "VolumeConditionAbnormal", fmt.Sprintf("Volume %s: %s", name, c.Message))
		}
	}
}

// sharing are the mounted volumes that are a recorded one: those of its claim, or the pod's own.
// The caller holds the lock.
func (m *Manager) sharing(podUID types.UID, r *mountrecord.Record) (all []*podVolume) {
	among := m.status.claims.Of(r.Claim())
	if r.Claim() == (types.NamespacedName{}) && m.entries.pods[podUID] != nil {
		among = slices.Values(m.entries.pods[podUID].volumes)
	}
	for s := range among {
		own := s.actual.record
		if s.state == StateMounted && (own == r || own != nil && r.PersistentVolumeName() != "" && own.PersistentVolumeName() == r.PersistentVolumeName()) {
			all = append(all, s)
		}
	}
	return all
}
