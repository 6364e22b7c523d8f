package volumemanager

import (
	"context"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/internal/podspec"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/lifecycle"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
	"github.com/podvol/podvol/volume/volumemanager/internal/statusrows"
)

// ContainerMounts returns what the runtime must show to one container, by name, of a
// declared pod: see [containermounts.Binder.Mounts], whose errors it has.
//
// Each of the volumes must be mounted ([Manager.SetUpPod]). One that is not is a
// *volume.Error with a *[NotMountedError] that says what it waits for. A pod that was
// never declared is [ErrUnknownPod], one that was deleted [ErrWithdrawn]. Before Run
// has recovered, the call waits for it, as [Manager.SetUpPod] does; after Run the
// error is [ErrStopped].
func (m *Manager) ContainerMounts(ctx context.Context, podUID types.UID, container string, options containermounts.Options) ([]containermounts.Mount, []containermounts.Device, error) {
	if err := m.life.WaitForRun(ctx); err != nil {
		return nil, nil, err
	}
	return m.containers.Mounts(ctx, podUID, container, options)
}

// containerVolumes is the manager's part in what containers are shown.
type containerVolumes struct {
	entries *entries
	status  *publisher
	life    *lifecycle.Lifecycle
	podDirs *rootdir.PodDirs
}

var _ containermounts.Volumes = containerVolumes{}

// DeclaredPod implements [containermounts.Volumes].
func (m containerVolumes) DeclaredPod(podUID types.UID) (*v1.Pod, error) {
	m.entries.Lock()
	defer m.entries.Unlock()
	p, ok := m.entries.pods[podUID]
	switch {
	case !ok || !p.pod.IsSet():
		return nil, ErrUnknownPod
	case !p.wanted:
		return nil, ErrWithdrawn
	}
	return p.pod.Get(), nil
}

// MountedVolume implements [containermounts.Volumes].
func (m containerVolumes) MountedVolume(podUID types.UID, name string) (*mountrecord.Record, error) {
	m.entries.Lock()
	defer m.entries.Unlock()
	p := m.entries.pods[podUID]
	if p == nil || !p.wanted {
		return nil, ErrWithdrawn
	}
	s := p.find(func(s *podVolume) bool { return s.wanted && slices.Contains(s.names, name) })
	if s == nil {
		return nil, volume.NothingDone(&NotMountedError{Waits: "the pod to be declared with it"})
	}
	// A volume rebuilt from a directory's name is not known well enough.
	if s.state == StateMounted && s.actual.record != nil && !s.actual.record.Rebuilt && s.doing != opTearDown {
		return s.actual.record, nil
	}
	return nil, volume.NothingDone(statusrows.NotMounted(m.status.rows(s), name))
}

// KeepRoot implements [containermounts.Volumes].
func (m containerVolumes) KeepRoot() (done func(), err error) { return m.life.KeepRoot() }

// Admit implements [containermounts.Volumes]. An admitted caller holds the lock that
// the tear-down takes first.
func (m containerVolumes) Admit(ctx context.Context, r *mountrecord.Record) (kept context.Context, done func(), err error) {
	if !m.isStanding(rootdir.KeyOf(r)) {
		return nil, nil, ErrWithdrawn
	}
	release, err := m.podDirs.Use(ctx, r.PodUID)
	if err != nil {
		return nil, nil, err
	}
	kept, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		select {
		case <-m.life.Stopped(): // it is not needed any more, and the next owner looks for itself
			cancel()
		case <-kept.Done():
		}
	}()
	return kept, func() { cancel(); release() }, nil
}

// isStanding reports whether a volume is wanted, and neither torn down nor about to be.
func (m containerVolumes) isStanding(key rootdir.Key) bool {
	m.entries.Lock()
	defer m.entries.Unlock()
	p := m.entries.pods[key.PodUID]
	return p != nil && p.wanted &&
		p.find(func(s *podVolume) bool { return s.actual.key == key && s.actual.exists() && s.doing != opTearDown }) != nil
}

// subPathsOf is where parts of a volume are bound.
func subPathsOf(key rootdir.Key) containermounts.SubPaths {
	return containermounts.SubPaths{PodUID: key.PodUID, Spec: key.Spec}
}

// groupOfVolume is the annotation of a PersistentVolume whose files belong to a
// group (Kubernetes' VolumeGidAnnotationKey).
const groupOfVolume = "pv.beta.kubernetes.io/gid"

// ExtraSupplementalGroups returns, sorted, the groups that the containers of a
// declared pod must have besides its securityContext's: its PersistentVolumes
// name them in the annotation pv.beta.kubernetes.io/gid, as with the kubelet.
// Call it after [Manager.SetUpPod]: a volume counts once it is mounted. A value
// that is no group id is ignored. Nil: none, or the pod is not declared. The
// result is the caller's.
func (m *Manager) ExtraSupplementalGroups(podUID types.UID) (groups []int64) {
	m.entries.Lock()
	defer m.entries.Unlock()
	p := m.entries.pods[podUID]
	if p == nil || !p.pod.IsSet() || !p.wanted {
		return nil
	}
	pod := p.pod.Get()
	for _, s := range p.volumes {
		if !s.wanted || s.state != StateMounted || s.actual.record == nil || s.actual.record.PersistentVolume == nil {
			continue
		}
		group, err := strconv.ParseUint(s.actual.record.PersistentVolume.Annotations[groupOfVolume], 10, 32)
		if err == nil && !podspec.HasGroup(pod, int64(group)) {
			groups = append(groups, int64(group))
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}
