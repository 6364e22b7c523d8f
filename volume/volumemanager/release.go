package volumemanager

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// PodContainers is the role that knows which pods still have containers. A
// volume is torn down only after it has said that the pod's are gone; a
// deletion timestamp or a phase is not enough.
type PodContainers interface {
	// ContainersGone reports whether no container of the pod runs any more or
	// will be started. After an error it is asked again with a back-off.
	ContainersGone(ctx context.Context, podUID types.UID) (bool, error)
	// WatchContainers calls f when the containers of a pod may have gone,
	// until stop is called. f does not block. After stop returns f is not
	// called any more.
	WatchContainers(f func(podUID types.UID)) (stop func())
}

// release asks whether the pod's containers are gone. While they are not, the
// role's next call is waited for.
func (m *Manager) release(ctx context.Context, s *podVolume) error {
	gone, err := m.config.Containers.ContainersGone(ctx, s.pod.uid)
	if err != nil || !gone {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leaves(s.pod) {
		s.pod.released = true
	}
	return nil
}

// resyncPod has every volume of a pod looked at again if the pod was released.
func (m *Manager) resyncPod(p *podState) {
	if !p.released {
		return
	}
	for _, s := range p.volumes {
		m.resync(s)
	}
}

// containersChanged is called by the role.
func (m *Manager) containersChanged(podUID types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.pods[podUID]
	if !ok || !m.leaves(p) {
		return
	}
	for _, s := range p.volumes {
		m.resync(s)
	}
}
