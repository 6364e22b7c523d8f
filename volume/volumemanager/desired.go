package volumemanager

import (
	"errors"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podspec"
	"github.com/podvol/podvol/volume/podcheck"
	"github.com/podvol/podvol/volume/podstate"
	"github.com/podvol/podvol/volume/validation"
	"github.com/podvol/podvol/volume/volumemanager/internal/declared"
	"github.com/podvol/podvol/volume/volumemanager/internal/lifecycle"
	"github.com/podvol/podvol/volume/volumemanager/volumestatus"
)

var (
	// ErrUnknownPod says that a pod was never declared.
	ErrUnknownPod = errors.New("the pod was never declared: call PutPod first")
	// ErrWithdrawn says that a pod was deleted while a call waited for its
	// volumes.
	ErrWithdrawn = volumestatus.ErrWithdrawn
	// ErrSuperseded says that a pod was declared with other volumes, or again,
	// while a call waited.
	ErrSuperseded = errors.New("the pod was declared anew meanwhile")
)

// PutPod declares that the pod runs, or is about to run, on this node, so that its
// volumes are set up and kept up. It returns at once and copies the pod. Before Run the
// declaration is kept; after Run the error is [ErrStopped].
//
//   - A second declaration updates the pod in place: a changed label reaches its
//     downwardAPI volumes. A pod that is being torn down is set up again after that.
//   - Invalid volumes are refused with *volume.InvalidSpecError, and nothing is changed. So
//     are annotations that a plugin cannot understand, of a new pod (see
//     [Manager.CheckPod]).
//   - A volume at whose place there is one that podvol has not recorded is not set up, but
//     fails with [ErrNoRecord]: see [Config].Adopt.
//   - A volume that no container uses is not set up and fails nothing, see [StateUnused].
//     Of a pod without any container all volumes are set up.
//   - A pod that has ended gives its volumes up, as with the kubelet: its phase is
//     Succeeded or Failed, and no container runs. They are torn down when
//     [Config].Containers says that the containers are gone. Without that role the status
//     must speak of each container; otherwise call [Manager.TearDownPod].
//     [Config].KeepEndedPodData says what may stay. The pod must still be deleted by
//     [Manager.DeletePod] or [Manager.TearDownPod]. Declared with another phase it is set
//     up again.
func (m *Manager) PutPod(pod *v1.Pod) error {
	if err := checkVolumes(pod); err != nil {
		return err
	}
	misunderstood := checkByPlugins(m.config.Plugins, pod)
	m.entries.Lock()
	defer m.entries.Unlock()
	if m.life.IsStopped() {
		return ErrStopped
	}
	if podstate.HasEnded(pod) {
		m.desired.endPod(pod)
		return nil
	}
	if misunderstood != nil && m.desired.isNew(pod.UID) {
		return misunderstood
	}
	if p := m.entries.pods[pod.UID]; p == nil || !p.wanted || !podspec.Same(p.pod.Get(), pod) {
		m.desired.declare(pod)
	}
	return nil
}

// desiredStateOfWorld is the state of the world as it shall be: which pods were declared, and
// which of their volumes their containers use. It belongs to the entries.
type desiredStateOfWorld struct {
	entries  *entries
	actual   *actualStateOfWorld
	schedule *schedule
	life     *lifecycle.Lifecycle
	// containers and keepEndedPodData are [Config]'s.
	containers       PodContainers
	keepEndedPodData bool

	declarations int
	complete     bool               // every pod has been declared once
	kept         map[types.UID]bool // though they are not declared
}

// declare makes the pod a part of the desired state of the world. The caller holds the lock.
func (w *desiredStateOfWorld) declare(pod *v1.Pod) *podState {
	p := w.entries.pod(pod.UID)
	w.declarations++
	p.declaration = w.declarations
	p.name, p.pod = podspec.Name(pod), declared.Of(pod) // operations may outlive the call
	pod = p.pod.Get()
	p.wanted, p.deleted, p.ended, p.released = true, false, false, false
	for _, s := range p.volumes {
		s.wanted, s.unused = false, false
	}
	for i := range pod.Spec.Volumes {
		names := podspec.NamesOf(pod, &pod.Spec.Volumes[i])
		s := p.volumeFor(names)
		if s.wanted || s.unused {
			continue // another volume of the same claim
		}
		s.names = names
		s.wanted = slices.ContainsFunc(names, func(name string) bool { return podstate.UsesVolume(pod, name) })
		s.unused = !s.wanted
		if s.unused {
			w.actual.rest(s)
			continue
		}
		if s.state == StateUnused {
			s.enter(StatePending, time.Now())
		}
		w.schedule.resync(s)
	}
	w.dropUnused(p)
	p.rest()
	p.announce()
	return p
}

// DeletePod declares that the pod shall go, and returns at once. Its volumes
// are torn down when [Config].Containers says that its containers are gone;
// without that role they wait for [Manager.TearDownPod], which is the caller's
// promise of it. An unknown pod is left at that.
func (m *Manager) DeletePod(podUID types.UID) {
	m.entries.Lock()
	defer m.entries.Unlock()
	m.desired.deletePod(podUID, false)
}

// deletePod takes a pod out of the desired state of the world, for good. The caller holds the lock.
func (w *desiredStateOfWorld) deletePod(podUID types.UID, released bool) {
	delete(w.kept, podUID)
	if p, ok := w.entries.pods[podUID]; ok {
		p.ended = false
		w.withdraw(p, released)
	}
}

// withdraw takes a pod out of the desired state of the world. The caller holds the lock.
func (w *desiredStateOfWorld) withdraw(p *podState, released bool) {
	w.declarations++
	p.declaration = w.declarations
	p.wanted, p.deleted, p.released = false, true, p.released || released
	for _, s := range slices.Clone(p.volumes) {
		if s.doing == opSetUp {
			s.giveUp(ErrWithdrawn)
		}
		w.schedule.resync(s)
	}
	p.announce()
	if len(p.volumes) == 0 && (!p.ended || w.life.HasRecovered()) {
		delete(w.entries.pods, p.uid) // no volume does that
	}
}

// PodsComplete declares that every pod of this node has been declared: the
// volumes of others may be torn down from now on, once their containers are gone
// as with [Manager.DeletePod]. Until then only pods that were deleted by name are
// torn down. Kept are known pods that cannot be declared yet: their volumes stay
// until they are declared or deleted. It returns at once, may be repeated with
// others kept, and may be called before Run.
func (m *Manager) PodsComplete(kept ...types.UID) {
	m.entries.Lock()
	defer m.entries.Unlock()
	m.devices.PodsComplete()
	m.desired.complete, m.desired.kept = true, make(map[types.UID]bool, len(kept))
	for _, uid := range kept {
		m.desired.kept[uid] = true
	}
	m.desired.resyncUndeclared()
}

// resyncUndeclared has the volumes of pods that were never declared reconciled
// again: they may leave by now. The caller holds the lock.
func (w *desiredStateOfWorld) resyncUndeclared() {
	for _, p := range w.entries.pods {
		if !p.pod.IsSet() {
			p.resync()
		}
	}
}

// leaves reports whether a pod is to go: it was deleted by name, or is not in
// the complete set.
func (w *desiredStateOfWorld) leaves(p *podState) bool {
	return !p.wanted && (p.deleted || !p.pod.IsSet() && w.complete && !w.kept[p.uid])
}

// CheckPod returns why [Manager.PutPod] would refuse the pod if it were new here,
// as *volume.InvalidSpecError; nothing is changed. A pod that was declared or has
// records is refused only for its volumes, which never change. Annotations do
// change, and must not cost it a mount: if a plugin cannot understand them, the
// volume that they concern fails, unless it is mounted. Before the records have
// been read, every pod may have some.
func (m *Manager) CheckPod(pod *v1.Pod) error {
	if err := checkVolumes(pod); err != nil {
		return err
	}
	return checkByPlugins(m.config.Plugins, pod)
}

func checkVolumes(pod *v1.Pod) error {
	if pod == nil {
		return volume.Invalid("pod", "is missing")
	}
	if err := volume.CheckPathSegment("pod UID", string(pod.UID)); err != nil {
		return err
	}
	return validation.PodVolumes(pod)
}

// checkByPlugins returns what plugins have against a pod.
func checkByPlugins(plugins []volume.VolumePlugin, pod *v1.Pod) error {
	var faults []error
	for _, plugin := range plugins {
		faults = append(faults, podcheck.Check(plugin, pod))
	}
	return errors.Join(faults...)
}

// isNew reports whether nothing of a pod can be mounted: it was not declared, and
// has no records. The caller holds the lock.
func (w *desiredStateOfWorld) isNew(podUID types.UID) bool {
	return w.life.HasRecovered() && w.entries.pods[podUID] == nil
}

// ErrPodEnded says that a pod's containers have ended for good: its status has the
// phase Succeeded or Failed, and none of them running. Its volumes are not set up;
// [Manager.PutPod] has them torn down.
var ErrPodEnded = volumestatus.ErrPodEnded

// endPod withdraws a pod that has ended, but does not forget it: its own data may stay
// until it is deleted. The caller holds the lock.
func (w *desiredStateOfWorld) endPod(pod *v1.Pod) {
	p := w.entries.pods[pod.UID]
	switch {
	case p != nil:
	case w.life.HasRecovered():
		return // it has nothing here
	default:
		p = w.entries.pod(pod.UID) // there may be records of it
	}
	gone := w.containers == nil && podspec.TellsOfAll(pod)
	if p.ended && (p.released || !gone) {
		return // just so
	}
	p.name, p.pod, p.ended = podspec.Name(pod), declared.Of(pod), true
	w.withdraw(p, gone)
}

// keeps reports whether a volume's data stays although its pod has ended.
func (w *desiredStateOfWorld) keeps(s *podVolume) bool {
	if !s.pod.ended || !w.keepEndedPodData {
		return false
	}
	r := s.actual.record
	return r != nil && r.InlineVolume != nil && r.InlineVolume.EmptyDir != nil
}

// recoverEnded reconciles the recorded volumes of pods that have ended, and forgets
// such pods without records. The caller holds the lock.
func (w *desiredStateOfWorld) recoverEnded() {
	for uid, p := range w.entries.pods {
		if !p.ended {
			continue
		}
		if len(p.volumes) == 0 {
			delete(w.entries.pods, uid)
		}
		p.resync()
	}
}

// dropUnused forgets the volumes that no container has used and that a pod, as it
// was declared now, does not have any more. The caller holds the lock.
func (w *desiredStateOfWorld) dropUnused(p *podState) {
	for _, s := range slices.Clone(p.volumes) {
		if s.state == StateUnused && !s.wanted && !s.unused && !s.actual.exists() {
			w.actual.drop(s)
		}
	}
}
