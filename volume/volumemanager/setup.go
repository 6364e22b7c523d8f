package volumemanager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/flight"
	"github.com/podvol/podvol/volume"
)

// SetUpPod sets up every volume of the pod, those of claims through the
// PersistentVolume they are bound to, and returns when all have succeeded or
// failed, or ctx ends. It is idempotent: a second call refreshes contents and
// repairs what failed. The result is never nil and has a row for each of the
// pod's volumes. Invalid volumes are refused before any is touched; failures
// are collected in a *[PodError]. Before Run has recovered, SetUpPod waits for
// it; after Run, the error is [ErrStopped]. The pod is not changed and not
// kept.
func (m *Manager) SetUpPod(ctx context.Context, pod *v1.Pod) (*PodVolumes, error) {
	result := pendingVolumes(pod)
	if err := checkPod(pod); err != nil {
		return result.failed(err), err
	}
	ctx, leave, err := m.enter(ctx)
	if err != nil {
		return result.failed(err), err
	}
	defer leave()
	pod = pod.DeepCopy() // an abandoned operation may outlive the call
	if err := m.setUpVolumes(ctx, pod, result); err != nil {
		return result.failed(err), err
	}
	err = result.err(opSetUp)
	if err != nil {
		m.podDirs.removeEmpty(ctx, m.host.RootDir, pod.UID)
	}
	return result, err
}

func (m *Manager) setUpVolumes(ctx context.Context, pod *v1.Pod, result *PodVolumes) error {
	done, err := m.podDirs.use(ctx, pod.UID)
	if err != nil {
		return err
	}
	defer done()
	var all sync.WaitGroup
	for i := range pod.Spec.Volumes {
		all.Go(func() {
			result.Volumes[i] = m.setUpVolume(ctx, pod, &pod.Spec.Volumes[i])
		})
	}
	all.Wait()
	return nil
}

func checkPod(pod *v1.Pod) error {
	if pod == nil {
		return volume.Invalid("pod", "is missing")
	}
	if err := volume.CheckPathSegment("pod UID", string(pod.UID)); err != nil {
		return err
	}
	return volume.ValidatePodVolumes(pod)
}

func pendingVolumes(pod *v1.Pod) *PodVolumes {
	if pod == nil {
		return &PodVolumes{}
	}
	result := &PodVolumes{Pod: podName(pod), PodUID: pod.UID, Volumes: make([]VolumeStatus, len(pod.Spec.Volumes))}
	now := time.Now()
	for i, v := range pod.Spec.Volumes {
		result.Volumes[i] = VolumeStatus{Pod: result.Pod, PodUID: pod.UID, Volume: v.Name, State: StatePending, Since: now}
	}
	return result
}

func podName(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// failed gives every volume the same error.
func (p *PodVolumes) failed(err error) *PodVolumes {
	for i := range p.Volumes {
		p.Volumes[i].State, p.Volumes[i].Err = StateFailed, err
	}
	return p
}

func (p *PodVolumes) err(op string) error {
	var errs []error
	for _, v := range p.Volumes {
		if v.Err != nil {
			errs = append(errs, v.Err)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return &PodError{Op: op, Pod: p.Pod, PodUID: p.PodUID, Errs: errs}
}

// setUp is one volume of one pod about to be set up.
type setUp struct {
	pod     *v1.Pod
	volume  string // the volume's name in the pod
	key     volumeKey
	plugin  volume.VolumePlugin
	mounter volume.Mounter
	record  *volume.Record
}

func (m *Manager) setUpVolume(ctx context.Context, pod *v1.Pod, v *v1.Volume) VolumeStatus {
	start := time.Now()
	s, err := m.prepare(ctx, pod, v)
	if err != nil {
		s = &setUp{pod: pod, volume: v.Name, record: &volume.Record{Pod: podName(pod), PodUID: pod.UID, Volume: v.Name}}
		m.event(s, err)
		status := s.status(stateOf(err), start, err)
		m.notify(status)
		return status
	}
	m.publish(s.key, s.status(StatePending, start, nil))
	err = m.operations.Do(ctx, s.key, func() error {
		err := m.apply(ctx, s, start)
		// Also when nobody waits any more.
		m.publish(s.key, s.status(stateOf(err), start, err))
		return err
	})
	if err == nil {
		return s.status(StateMounted, start, nil)
	}
	if stateOf(err) == StatePending {
		// It may have ended at the very moment that the wait did.
		if current, ok := m.current(s.key); ok && current.status.State == StateMounted {
			return s.status(StateMounted, start, nil)
		}
	}
	m.event(s, err)
	return s.status(stateOf(err), start, err)
}

func (s *setUp) status(state VolumeState, start time.Time, err error) VolumeStatus {
	now := time.Now()
	named := *s.record
	named.Volume = s.volume
	return VolumeStatus{
		Pod: s.record.Pod, PodUID: s.record.PodUID, Volume: s.volume,
		Plugin: s.record.Plugin, Source: s.record.Source, Path: s.record.Path,
		State: state, Since: now, Duration: now.Sub(start), Err: wrap(&named, "SetUp", err),
	}
}

// stateOf is the state after an operation: pending where it still runs.
func stateOf(err error) VolumeState {
	if err == nil {
		return StateMounted
	}
	if _, abandoned := errors.AsType[*flight.AbandonedError](err); abandoned {
		return StatePending
	}
	return StateFailed
}

// prepare finds out, without touching anything, what is to be done.
func (m *Manager) prepare(ctx context.Context, pod *v1.Pod, v *v1.Volume) (*setUp, error) {
	spec, err := m.resolve(ctx, pod, v)
	if err != nil {
		return nil, err
	}
	plugin, err := m.plugins.FindPluginBySpec(spec)
	if err != nil {
		return nil, err
	}
	if err := checkMountOptions(plugin, spec); err != nil {
		return nil, err
	}
	mounter, err := plugin.NewMounter(spec, pod)
	if err != nil {
		return nil, err
	}
	record := &volume.Record{
		PodUID:           pod.UID,
		Pod:              podName(pod),
		Volume:           firstOfClaim(pod, v),
		Plugin:           plugin.GetPluginName(),
		Path:             mounter.GetPath(),
		Source:           volume.DescribeSource(plugin, spec),
		InlineVolume:     spec.Volume,
		PersistentVolume: spec.PersistentVolume,
		ReadOnly:         spec.ReadOnly,
	}
	return &setUp{pod: pod, volume: v.Name, key: keyOf(record), plugin: plugin, mounter: mounter, record: record}, nil
}

// firstOfClaim is the name that the record has: volumes of a pod that use the
// same claim are one directory, and share its record.
func firstOfClaim(pod *v1.Pod, v *v1.Volume) string {
	if v.PersistentVolumeClaim == nil {
		return v.Name
	}
	for i := range pod.Spec.Volumes {
		other := &pod.Spec.Volumes[i]
		if c := other.PersistentVolumeClaim; c != nil && c.ClaimName == v.PersistentVolumeClaim.ClaimName {
			return other.Name
		}
	}
	return v.Name
}

func checkMountOptions(plugin volume.VolumePlugin, spec *volume.Spec) error {
	pv := spec.PersistentVolume
	if pv == nil || len(pv.Spec.MountOptions) == 0 || volume.SupportsMountOption(plugin) {
		return nil
	}
	return volume.Invalid("spec.mountOptions", "volumes of %s take no mount options; remove them from PersistentVolume %s", plugin.GetPluginName(), pv.Name)
}

// apply is the operation: record, sync, act, confirm.
func (m *Manager) apply(ctx context.Context, s *setUp, start time.Time) error {
	before, err := m.admit(s)
	if err != nil {
		return err
	}
	confirmed, err := m.writeRecord(s, before)
	if err != nil {
		return volume.NothingDone(err)
	}
	if err := s.mounter.SetUp(ctx, mounterArgs(s.pod)); err != nil {
		if before.record == nil && !volume.IsUncertain(err) {
			m.forget(s.key)
		}
		return err
	}
	return m.confirm(s, confirmed, start)
}

// admit refuses what would hide or replace a volume that is there already, and
// returns what is known about the volume itself, which is empty for a new one.
func (m *Manager) admit(s *setUp) (before actualVolume, err error) {
	if unreadable, ok := m.unreadable[s.key.String()]; ok {
		return actualVolume{}, volume.NothingDone(unreadable)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, other := range m.actual[s.key.podUID] {
		if other.record == nil {
			continue
		}
		sameDir := key == s.key
		sameVolume := other.record.Volume == s.record.Volume
		if sameDir && m.sameSource(s, other.record) {
			before = *other
			continue
		}
		if sameDir || sameVolume {
			return actualVolume{}, volume.NothingDone(&ReplacedError{Volume: s.volume, Was: describe(other.record), Is: describe(s.record)})
		}
	}
	return before, nil
}

// writeRecord makes sure that the record on disk is this one, and returns its
// confirmation, if it has one.
func (m *Manager) writeRecord(s *setUp, before actualVolume) (*volume.Confirmation, error) {
	line, err := volume.EncodeRecord(s.record)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(before.line, line) {
		return before.record.Confirmed, nil
	}
	if err := m.records.write(s.key, line); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.actual.volume(s.key)
	v.record, v.line = s.record, line
	return nil, nil
}

func describe(r *volume.Record) string { return r.Plugin + " " + r.Source }

// sameSource reports whether both mean the same data, so that a set-up may
// refresh the one that is there.
func (m *Manager) sameSource(s *setUp, old *volume.Record) bool {
	if (old.PersistentVolume == nil) != (s.record.PersistentVolume == nil) {
		return false
	}
	was, errWas := s.plugin.GetVolumeName(old.Spec())
	is, errIs := s.plugin.GetVolumeName(s.record.Spec())
	return errWas == nil && errIs == nil && was == is
}

// ReplacedError says that a pod's volume is mounted from another source than
// is now asked for. Its containers may be using it, so it is left alone.
type ReplacedError struct{ Volume, Was, Is string }

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("volume %q is mounted from %s, but %s is asked for; tear the pod down first", e.Volume, e.Was, e.Is)
}

// confirm notes that the volume is set up, unless that is known. Losing the
// note is harmless, so failing to write it is no failure of the volume.
func (m *Manager) confirm(s *setUp, known *volume.Confirmation, start time.Time) error {
	table, err := mount.TableOf(m.host.Mounter)
	if err != nil {
		return err
	}
	_, mounted, err := table.At(s.record.Path)
	if err != nil {
		return err
	}
	if known != nil && known.MountPoint == mounted {
		return nil
	}
	now := time.Now()
	c := &volume.Confirmation{At: now, Took: now.Sub(start), MountPoint: mounted}
	if err := m.records.confirm(s.key, *c); err != nil {
		m.log.Warn("a volume record could not be confirmed", "volume", s.record.Volume, "podUID", s.record.PodUID, "error", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.actual.volume(s.key)
	confirmed := *v.record
	confirmed.Confirmed = c
	v.record = &confirmed
	return nil
}

// forget removes the record of a volume that is known not to be there.
func (m *Manager) forget(key volumeKey) {
	if err := m.records.remove(key); err != nil {
		m.log.Warn("a volume record could not be removed", "podUID", key.podUID, "volume", key.spec, "error", err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.actual.volume(key)
	v.record, v.line = nil, nil
}

// wrap makes sure that an error names volume and pod; nil stays nil.
func wrap(r *volume.Record, op string, err error) error {
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*volume.Error](err); ok && own.PodUID == r.PodUID {
		return err
	}
	return &volume.Error{Op: op, Plugin: r.Plugin, Volume: r.Volume, Pod: r.Pod, PodUID: r.PodUID, Err: err}
}

// event reports a failure in the kubelet's words.
func (m *Manager) event(s *setUp, err error) {
	if m.config.Events == nil {
		return
	}
	m.config.Events.Event(s.pod, v1.EventTypeWarning, "FailedMount",
		fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", s.volume, err))
}
