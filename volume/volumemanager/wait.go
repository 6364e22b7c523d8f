package volumemanager

import (
	"context"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podspec"
	"github.com/podvol/podvol/volume/podstate"
	"github.com/podvol/podvol/volume/volumemanager/internal/declared"
	"github.com/podvol/podvol/volume/volumemanager/internal/statusrows"
)

// SetUpPod declares the pod as [Manager.PutPod] does and waits until each volume that a
// container uses is mounted, or an attempt at it has failed, or ctx ends. The result is
// never nil and has a row for each of the pod's volumes. The pod is copied.
//
//   - It always begins an attempt, whatever pause was due: a second call refreshes
//     contents and repairs failures.
//   - Invalid volumes are refused before any is touched. So is a pod that has ended, with
//     [ErrPodEnded], which changes nothing.
//   - Failures are collected in a *[PodError].
//   - The declaration stays after a failure and after the end of ctx: the volumes are
//     retried with a growing pause until the pod is deleted.
//   - Before Run has recovered, SetUpPod waits for it. It gives up with [ErrNotRun] if Run
//     is not called within half a minute. After Run the error is [ErrStopped].
//   - [ErrWithdrawn] and [ErrSuperseded] say that another caller declared otherwise
//     meanwhile.
func (m *Manager) SetUpPod(ctx context.Context, pod *v1.Pod) (*PodVolumes, error) {
	if err := checkVolumes(pod); err != nil {
		return statusrows.Refused(pod, err), err
	}
	if podstate.HasEnded(pod) {
		return statusrows.Refused(pod, ErrPodEnded), ErrPodEnded
	}
	if err := m.life.WaitForRun(ctx); err != nil {
		return statusrows.Refused(pod, err), err
	}
	expected, err := m.declared(pod)
	if err != nil {
		return statusrows.Refused(pod, err), err
	}
	var result *PodVolumes
	err = m.reconciler.trace.span(ctx, "SetUpPod", podspec.Name(pod), pod.UID, nil, func(ctx context.Context) error {
		err := m.await(ctx, pod.UID, func(p *podState) (bool, error) {
			if err := expected.superseded(p); err != nil {
				return true, err
			}
			return expected.attempted(), nil
		})
		result = m.volumesOf(pod, err)
		return statusrows.ErrorOf(result, statusrows.SetUp, err)
	})
	return result, err
}

// WaitForMounted waits until every volume of a declared pod that a container of it
// uses is mounted as it was declared, through all failures and pauses. When ctx ends first, the error
// is a *[PodError] that says of each volume what it waits for, and the declaration
// stays; before Run has recovered it is a *[RecoveryError]. A volume for which the node has no
// room ends the wait at once, with a *[PodError] that matches [volume.ErrAttachLimitExceeded]. With a ctx that has
// ended already, the call only looks. A pod that was never declared is
// [ErrUnknownPod]; one that was deleted meanwhile is [ErrWithdrawn]; after Run,
// the error is [ErrStopped].
func (m *Manager) WaitForMounted(ctx context.Context, podUID types.UID) error {
	if err := m.awaitRecovery(ctx); err != nil {
		return err
	}
	m.entries.Lock()
	p, ok := m.entries.pods[podUID]
	if !ok || !p.pod.IsSet() {
		m.entries.Unlock()
		return ErrUnknownPod
	}
	expected := expectationOf(p)
	pod := p.pod
	m.entries.Unlock()
	err := m.await(ctx, podUID, func(p *podState) (bool, error) {
		if p == nil || !p.wanted {
			return true, ErrWithdrawn
		}
		return expected.applied(), expected.excess()
	})
	if err == nil || errors.Is(err, ErrStopped) || errors.Is(err, ErrWithdrawn) {
		return err
	}
	ended := err
	if errors.Is(err, volume.ErrAttachLimitExceeded) {
		ended = nil // its row says so
	}
	result := m.volumesOf(pod.Get(), ended)
	if statusrows.AreMounted(result.Volumes) {
		return nil // in the moment that ctx ended
	}
	return statusrows.ErrorOf(result, statusrows.SetUp, err)
}

// TearDownPod deletes the pod as [Manager.DeletePod] does and waits until each
// of its volumes is gone, or an attempt at it has failed, or ctx ends. The
// caller promises that the pod's containers no longer run. It is idempotent; a
// pod without volumes is torn down with success. Failures are collected in a
// *[PodError]; their volumes keep their records and are tried again with a
// growing pause, or by another call at once. Data that outlives pods (NFS,
// hostPath, local) stays. Waiting for Run and [ErrStopped] are as for SetUpPod.
func (m *Manager) TearDownPod(ctx context.Context, podUID types.UID) error {
	if err := volume.CheckPathSegment("pod UID", string(podUID)); err != nil {
		return err
	}
	if err := m.life.WaitForRun(ctx); err != nil {
		return err
	}
	expected, known := m.deleted(podUID)
	if !known {
		return m.podDirs.RemoveEmpty(ctx, m.host.RootDir, podUID, "")
	}
	return m.reconciler.trace.span(ctx, "TearDownPod", types.NamespacedName{}, podUID, nil, func(ctx context.Context) error {
		return m.awaitGone(ctx, podUID, (*podVolume).isLeftBehind, expected.attempted)
	})
}

// WaitForUnmounted waits until nothing is left of a pod's volumes, through all
// failures and pauses, nor of their devices on this node that no other pod uses. When ctx ends first, the error is a *[PodError] that
// says of each volume what it waits for; before Run has recovered it is a
// *[RecoveryError]. With a ctx that has ended already, the call only looks. A
// pod that is not known is gone. A pod that is declared, or is so again
// meanwhile, is [ErrSuperseded]; after Run, the error is [ErrStopped].
func (m *Manager) WaitForUnmounted(ctx context.Context, podUID types.UID) error {
	if err := m.awaitRecovery(ctx); err != nil {
		return err
	}
	return m.awaitGone(ctx, podUID, (*podVolume).isLeftBehind, nil)
}

// WaitForUnpublished is [Manager.WaitForUnmounted], but waits only until nothing is left of the
// volumes in the pod itself: its own mounts and directories are gone. So long a kubelet waits
// before it lets the pod's object go. A device of the node may still be mounted then. It is
// unmounted afterwards, with retries, has a row in [Manager.Explain] until that is done, and is
// among [Manager.VolumesInUse].
func (m *Manager) WaitForUnpublished(ctx context.Context, podUID types.UID) error {
	if err := m.awaitRecovery(ctx); err != nil {
		return err
	}
	return m.awaitGone(ctx, podUID, (*podVolume).isInPod, nil)
}

// isLeftBehind counts each volume, and isInPod those that may have something in their pod.
func (s *podVolume) isLeftBehind() bool { return true }
func (s *podVolume) isInPod() bool      { return !s.actual.unpublished }

// awaitGone waits until the pod has no volume that counts, or, unless it is nil, enough.
func (m *Manager) awaitGone(ctx context.Context, podUID types.UID, counts func(*podVolume) bool, enough func() bool) error {
	err := m.await(ctx, podUID, func(p *podState) (bool, error) {
		switch {
		case p == nil:
			return true, nil
		case p.wanted:
			return true, ErrSuperseded
		}
		return p.find(counts) == nil || enough != nil && enough(), nil
	})
	if errors.Is(err, ErrSuperseded) || errors.Is(err, ErrStopped) {
		return err
	}
	result := m.remains(podUID, counts, err)
	if len(result.Volumes) == 0 {
		return nil // perhaps in the moment that ctx ended
	}
	return statusrows.ErrorOf(result, statusrows.TearDown, err)
}

// awaitRecovery is [Manager.WaitForRecovery], but does not mind the end of ctx
// where there is nothing to wait for, and names the reason for the wait.
func (m *Manager) awaitRecovery(ctx context.Context) error {
	err := m.WaitForRecovery(ctx)
	if err == nil || errors.Is(err, ErrStopped) {
		return err
	}
	if m.life.HasRecovered() {
		return nil
	}
	return &RecoveryError{RootDir: m.host.RootDir, Cause: err}
}

// await waits until done says so of the pod, which is nil once nothing is known
// of it. The error is done's, [ErrStopped] or the cause of ctx's end.
func (m *Manager) await(ctx context.Context, podUID types.UID, done func(*podState) (bool, error)) error {
	for {
		changed, err := m.check(podUID, done)
		if changed == nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-m.life.Stopped():
			return ErrStopped
		}
	}
}

func (m *Manager) check(podUID types.UID, done func(*podState) (bool, error)) (changed <-chan struct{}, err error) {
	m.entries.Lock()
	defer m.entries.Unlock()
	p := m.entries.pods[podUID]
	if ok, err := done(p); ok || err != nil || p == nil {
		return nil, err
	}
	return p.nextChange(), nil
}

// expectation is what one wait is for: these volumes at these generations.
type expectation struct {
	pod         declared.Pod
	declaration int
	volumes     []*podVolume
	generations []int
}

// expectationOf returns the desired state now. The caller holds the lock.
func expectationOf(p *podState) expectation {
	g := expectation{pod: p.pod, declaration: p.declaration}
	for _, s := range p.volumes {
		if s.wanted || !p.wanted {
			g.volumes = append(g.volumes, s)
			g.generations = append(g.generations, s.generation)
		}
	}
	return g
}

func (m *Manager) declared(pod *v1.Pod) (expectation, error) {
	misunderstood := checkByPlugins(m.config.Plugins, pod)
	m.entries.Lock()
	defer m.entries.Unlock()
	if m.life.IsStopped() {
		return expectation{}, ErrStopped
	}
	if misunderstood != nil && m.desired.isNew(pod.UID) {
		return expectation{}, misunderstood
	}
	return expectationOf(m.desired.declare(pod)), nil
}

func (m *Manager) deleted(podUID types.UID) (g expectation, known bool) {
	m.entries.Lock()
	defer m.entries.Unlock()
	m.desired.deletePod(podUID, true)
	p, ok := m.entries.pods[podUID]
	if !ok {
		return expectation{}, false
	}
	return expectationOf(p), true
}

// superseded says that something else is desired by now.
func (g expectation) superseded(p *podState) error {
	switch {
	case p == nil || !p.wanted:
		return ErrWithdrawn
	case p.declaration != g.declaration && !equality.Semantic.DeepEqual(p.pod.Get().Spec.Volumes, g.pod.Get().Spec.Volumes):
		return ErrSuperseded
	}
	return nil
}

// attempted reports whether each volume was tried since, if its volume is used still.
func (g expectation) attempted() bool {
	for i, s := range g.volumes {
		if s.attempted < g.generations[i] && !s.isLeft() {
			return false
		}
	}
	return true
}

// applied reports whether each volume is mounted as it was declared, if its volume is
// used still.
func (g expectation) applied() bool {
	for i, s := range g.volumes {
		if (s.applied < g.generations[i] || s.state != StateMounted) && !s.isLeft() {
			return false
		}
	}
	return true
}

// excess is the error of a volume for which the node has no room; nil: there is none.
func (g expectation) excess() error {
	for _, s := range g.volumes {
		if errors.Is(s.err, volume.ErrAttachLimitExceeded) && s.IsWanted() && s.state != StateMounted {
			return s.err
		}
	}
	return nil
}

// goneBefore is what the tear-down of a pod waits for. The caller holds the lock.
func (m *Manager) goneBefore(p *podState) string {
	if p.ended && m.config.KeepEndedPodData {
		return "the pod to be deleted: it has ended, and Config.KeepEndedPodData keeps its emptyDir volumes until then"
	}
	if m.config.Containers == nil && !p.released {
		return "the promise that its containers are gone: Config.Containers is nil, so call TearDownPod"
	}
	return "its containers to be gone"
}

// volumesOf returns the pod's volumes as they are when a wait ends, by its
// error where it was not to the end.
func (m *Manager) volumesOf(pod *v1.Pod, ended error) *PodVolumes {
	m.entries.Lock()
	defer m.entries.Unlock()
	p, ok := m.entries.pods[pod.UID]
	if !ok {
		return statusrows.Refused(pod, ended)
	}
	result := statusrows.Untouched(pod)
	for _, s := range p.volumes {
		for _, row := range m.status.rows(s) {
			i := slices.IndexFunc(result.Volumes, func(v VolumeStatus) bool { return v.Volume == row.Volume })
			if i < 0 {
				continue
			}
			switch {
			case s.unused && s.pod.wanted:
				if row.Err = nil; row.State != StateMounted { // whatever remains there
					row.State = StateUnused
				}
			case ended != nil && (row.State != StateMounted || s.doing != opNone || s.applied < s.generation):
				row = statusrows.Pending(row, ended, "its set-up to begin")
			}
			result.Volumes[i] = row
		}
	}
	return result
}

// remains returns those of a pod's volumes that count.
func (m *Manager) remains(podUID types.UID, counts func(*podVolume) bool, ended error) *PodVolumes {
	m.entries.Lock()
	defer m.entries.Unlock()
	result := &PodVolumes{PodUID: podUID}
	p, ok := m.entries.pods[podUID]
	if !ok {
		return result
	}
	result.Pod, result.Volumes = p.name, m.status.sortedRows(p.volumesThat(counts))
	for i, row := range result.Volumes {
		if ended != nil {
			result.Volumes[i] = statusrows.Pending(row, ended, m.goneBefore(p))
		}
	}
	return result
}
