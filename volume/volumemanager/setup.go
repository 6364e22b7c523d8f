package volumemanager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/below"
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
	mounter volume.Mounter
	record  *volume.Record
	source  string // the plugin's name of the source
}

func (m *Manager) setUpVolume(ctx context.Context, pod *v1.Pod, v *v1.Volume) VolumeStatus {
	start := time.Now()
	s, err := m.prepare(ctx, pod, v)
	if err != nil {
		m.event(ctx, s, err)
		status := s.status(StateFailed, start, err)
		m.publish(status)
		return status
	}
	abandoned, err := m.operate(ctx, s.key, func() error {
		m.publish(s.status(StatePending, start, nil))
		err := m.apply(ctx, s, start)
		m.publish(s.status(stateAfter(err), start, err))
		return err
	})
	if abandoned != nil {
		return s.status(StatePending, start, abandoned)
	}
	if err != nil {
		m.event(ctx, s, err)
	}
	return s.status(stateAfter(err), start, err)
}

func (s *setUp) status(state VolumeState, start time.Time, err error) VolumeStatus {
	now := time.Now()
	return VolumeStatus{
		Pod: s.record.Pod, PodUID: s.record.PodUID, Volume: s.volume,
		Plugin: s.record.Plugin, Source: s.record.Source, Path: s.record.Path,
		State: state, Since: now, Duration: now.Sub(start), Err: wrap(s.record, s.volume, "SetUp", err),
	}
}

func stateAfter(err error) VolumeState {
	if err != nil {
		return StateFailed
	}
	return StateMounted
}

// prepare finds out, without touching anything, what is to be done. With an
// error, the result says as much as was found.
func (m *Manager) prepare(ctx context.Context, pod *v1.Pod, v *v1.Volume) (*setUp, error) {
	record := &volume.Record{PodUID: pod.UID, Pod: podName(pod), Volumes: namesOf(pod, v)}
	s := &setUp{pod: pod, volume: v.Name, record: record}
	spec, err := m.resolve(ctx, pod, v)
	if err != nil {
		return s, err
	}
	record.InlineVolume, record.PersistentVolume, record.ReadOnly = spec.Volume, spec.PersistentVolume, spec.ReadOnly
	plugin, err := m.plugins.FindPluginBySpec(spec)
	if err != nil {
		return s, err
	}
	record.Plugin, record.Source = plugin.GetPluginName(), volume.DescribeSource(plugin, spec)
	if err := checkMountOptions(plugin, spec); err != nil {
		return s, err
	}
	if err := m.checkNamesake(pod, spec, plugin); err != nil {
		return s, err
	}
	if s.mounter, err = plugin.NewMounter(spec, pod); err != nil {
		return s, err
	}
	if s.source, err = plugin.GetVolumeName(spec); err != nil {
		return s, err
	}
	record.Path = s.mounter.GetPath()
	s.key = keyOf(record)
	return s, nil
}

// namesOf returns the pod's volumes that are the same directory as v: those of
// the same claim.
func namesOf(pod *v1.Pod, v *v1.Volume) (names []string) {
	if v.PersistentVolumeClaim == nil {
		return []string{v.Name}
	}
	for i := range pod.Spec.Volumes {
		other := &pod.Spec.Volumes[i]
		if c := other.PersistentVolumeClaim; c != nil && c.ClaimName == v.PersistentVolumeClaim.ClaimName {
			names = append(names, other.Name)
		}
	}
	return names
}

func checkMountOptions(plugin volume.VolumePlugin, spec *volume.Spec) error {
	pv := spec.PersistentVolume
	if pv == nil || len(pv.Spec.MountOptions) == 0 || volume.SupportsMountOption(plugin) {
		return nil
	}
	return volume.Invalid("spec.mountOptions", "volumes of %s take no mount options; remove them from PersistentVolume %s", plugin.GetPluginName(), pv.Name)
}

// checkNamesake refuses a PersistentVolume whose directory is that of an inline
// volume of the pod: directories are named after both alike.
func (m *Manager) checkNamesake(pod *v1.Pod, spec *volume.Spec, plugin volume.VolumePlugin) error {
	if spec.PersistentVolume == nil {
		return nil
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil || v.Name != spec.Name() {
			continue
		}
		other, err := m.plugins.FindPluginBySpec(volume.NewSpecFromVolume(v))
		if err == nil && other.GetPluginName() == plugin.GetPluginName() {
			return volume.Invalid("volume "+v.Name, "has the name of PersistentVolume %s, which this pod uses too, so that both would have one directory; rename the volume", v.Name)
		}
	}
	return nil
}

// apply is the operation: record, sync, act, confirm.
func (m *Manager) apply(ctx context.Context, s *setUp, start time.Time) error {
	line, err := volume.EncodeRecord(s.record)
	if err != nil {
		return err
	}
	before, err := m.admit(s, line)
	if err != nil {
		return err
	}
	if !bytes.Equal(before.line, line) {
		if err := m.records.write(s.key, line); err != nil {
			m.set(s.key, before)
			return volume.NothingDone(err)
		}
	}
	if err := s.mounter.SetUp(ctx, mounterArgs(s.pod)); err != nil {
		if !volume.IsUncertain(err) {
			m.restore(s.key, before, line)
		}
		return err
	}
	return m.confirm(s, line, start)
}

// admit refuses what would hide or replace a volume that is there already, and
// else enters the new one, so that no other set-up is admitted beside it. It
// returns what was known before, which is empty for a new volume.
func (m *Manager) admit(s *setUp, line []byte) (before actualVolume, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	pod := m.actual.pod(s.key.podUID)
	for key, other := range pod.mounts {
		if key == s.key && other.unreadable != nil {
			return before, volume.NothingDone(other.unreadable)
		}
		if other.record == nil {
			continue
		}
		if key == s.key && other.source == s.source && (other.record.PersistentVolume == nil) == (s.record.PersistentVolume == nil) {
			before = *other
			continue
		}
		if key == s.key || slices.Contains(other.record.Volumes, s.volume) {
			return actualVolume{}, volume.NothingDone(&ReplacedError{Volume: s.volume, Was: describe(other.record), Is: describe(s.record)})
		}
	}
	entered := actualVolume{record: s.record, line: line, source: s.source}
	if bytes.Equal(before.line, line) {
		entered.record = before.record // which may be confirmed
	}
	pod.mounts[s.key] = &entered
	return before, nil
}

func describe(r *volume.Record) string { return r.Plugin + " " + r.Source }

// ReplacedError says that a pod's volume is mounted from another source than
// is now asked for. Its containers may be using it, so it is left alone.
type ReplacedError struct{ Volume, Was, Is string }

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("volume %q is mounted from %s, but %s is asked for; tear the pod down first", e.Volume, e.Was, e.Is)
}

// restore puts the record back as it was before a set-up that did nothing. A
// record too many is harmless, so failing to do it is only logged.
func (m *Manager) restore(key volumeKey, before actualVolume, line []byte) {
	var err error
	switch {
	case before.record == nil:
		err = m.records.remove(key)
	case !bytes.Equal(before.line, line):
		err = m.records.write(key, before.line)
		if err == nil && before.record.Confirmed != nil {
			err = m.records.confirm(key, *before.record.Confirmed)
		}
	}
	if err != nil {
		m.log.Warn("a volume record could not be put back", "podUID", key.podUID, "volume", key.spec, "error", err)
		return
	}
	m.set(key, before)
}

// confirm notes that the volume is set up, unless that is known. Losing the
// note is harmless, so failing to write it is no failure of the volume.
func (m *Manager) confirm(s *setUp, line []byte, start time.Time) error {
	mounted, err := m.mountedBelow(s.record.Path)
	if err != nil {
		return err
	}
	current, ok := m.mounted(s.key)
	if ok && current.record.Confirmed != nil && current.record.Confirmed.MountPoint == mounted {
		return nil
	}
	now := time.Now()
	c := &volume.Confirmation{At: now, Took: now.Sub(start), MountPoint: mounted}
	if err := m.records.confirm(s.key, *c); err != nil {
		m.log.Warn("a volume record could not be confirmed", "volume", s.volume, "podUID", s.record.PodUID, "error", err)
	}
	confirmed := *s.record
	confirmed.Confirmed = c
	m.set(s.key, actualVolume{record: &confirmed, line: line, source: s.source})
	return nil
}

// mountedBelow reports whether a volume's path is a mount point of its own. A
// path outside the root, a hostPath's, is somebody else's matter.
func (m *Manager) mountedBelow(path string) (bool, error) {
	if !below.Strictly(podsDir(m.host.RootDir), path) {
		return false, nil
	}
	table, err := mount.TableOf(m.host.Mounter)
	if err != nil {
		return false, err
	}
	_, mounted, err := table.At(path)
	return mounted, err
}

// wrap makes sure that an error names the volume as the pod does, and the pod;
// nil stays nil.
func wrap(r *volume.Record, volumeName, op string, err error) error {
	if err == nil {
		return nil
	}
	e := &volume.Error{Op: op, Plugin: r.Plugin, Volume: volumeName, Pod: r.Pod, PodUID: r.PodUID, Err: err}
	if own, ok := err.(*volume.Error); ok {
		e.Op, e.Err = own.Op, own.Err // it says the same, with the spec's name
	}
	return e
}

// event reports a failure in the kubelet's words, but not that somebody waits
// no more.
func (m *Manager) event(ctx context.Context, s *setUp, err error) {
	if m.config.Events == nil || ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return
	}
	m.config.Events.Event(s.pod, v1.EventTypeWarning, "FailedMount",
		fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", s.volume, err))
}
