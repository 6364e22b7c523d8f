package volumemanager

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
)

// VolumesInUse returns the unique names, sorted, of the attachable volumes that a
// declared pod wants, from the moment that its claim is resolved, or that are still
// mounted here. They belong into the node's status.volumesInUse, which keeps them from
// being detached.
//
//   - A volume leaves the list after its device is unmounted.
//   - While a record cannot be read, or its plugin is not there, all volumes of the plugin
//     stay listed that are reported attached or were reported in use: it may be any of
//     them. While [Manager.Damaged] returns an error this holds for all plugins.
//   - After a restart, a mounted volume stays listed until it is known that it is none
//     that is attached. So does what another agent has left staged, until it is unstaged.
//   - Until the manager has recovered the result is nil. It must not be reported.
//   - A volume's status says when the list may have changed; see [Manager.Subscribe].
//   - Each call must be followed by a report and [Manager.ReportedInUse]: a volume that
//     is left out of the list counts as unreported from then on.
func (m *Manager) VolumesInUse() []v1.UniqueVolumeName {
	if !m.life.HasRecovered() {
		return nil
	}
	damaged := m.Damaged() != nil
	m.entries.Lock()
	defer m.entries.Unlock()
	return m.devices.InUse(m.actual.hiddenPrefixes(damaged))
}

// AttachableSpec returns a volume that [Manager.VolumesInUse] lists, for whoever attaches it
// (package selfattach); nil: no pod here has it. The caller must not change it.
func (m *Manager) AttachableSpec(name v1.UniqueVolumeName) *volume.Spec { return m.devices.Spec(name) }

// ReportedInUse says which volumes the node's status lists in use, after a report of
// [Manager.VolumesInUse] has reached it; also if the status said so before. Reports must follow
// one another. The volumes that waited for this, and are attached, are mounted at once. It never
// blocks. The slice is not kept.
func (m *Manager) ReportedInUse(names []v1.UniqueVolumeName) {
	m.entries.Lock()
	defer m.entries.Unlock()
	m.devices.SetInUse(names)
}

// SetVolumesAttached says which volumes are attached to this node, all of them: the
// status.volumesAttached of its Node object. It never blocks and does not keep the slice.
//
//   - Volumes that waited for it and are reported in use are mounted at once.
//   - A volume that disappears while it is mounted is left alone; its status says so.
//   - The list must not be older than the report that was acknowledged last: the Node
//     that an update of its status returns has both lists.
//   - Without a call no attachable volume is mounted; the status of each says what it
//     waits for. Package selfattach makes the calls where the node attaches by itself.
func (m *Manager) SetVolumesAttached(attached []v1.AttachedVolume) {
	m.entries.Lock()
	defer m.entries.Unlock()
	m.devices.SetAttached(attached)
}

func newAttachmentError(node string, r devices.Reports) *AttachmentError {
	return &AttachmentError{Volume: r.Volume, Node: node, ReportedInUse: r.InUse, Attached: r.Attached}
}

// checkAttachment asks the plugin why the volume is not attached, and notes that.
func checkAttachment(ctx context.Context, missing *AttachmentError, plugin volume.VolumePlugin, spec *volume.Spec) error {
	if checker, ok := volume.AsAttachmentChecker(plugin); ok && missing.ReportedInUse && !missing.Attached {
		missing.Err = checker.CheckAttachment(ctx, spec)
	}
	return missing.Err
}

// awaits says which reports are missing before the mount; nil: none. The caller holds the lock.
func (p *publisher) awaits(s *podVolume) *AttachmentError {
	if r, missing := p.devices.Missing(s); missing {
		return newAttachmentError(p.nodeName, r)
	}
	return nil
}

// finishWaiting notes that an operation ended since a report is missing, and the plugin's reason;
// it is no attempt: those that wait for one go on waiting. Where the plugin can say why the
// volume is not attached, it is asked again after a pause. The caller holds the lock.
func (r *reconciler) finishWaiting(s *podVolume, generation int, missing *AttachmentError) {
	s.err = missing.Err
	waits := r.status.awaits(s) != nil // the reports may have come meanwhile
	plugin, _ := r.status.plugins.FindPluginByName(s.describe().Plugin)
	if _, checked := volume.AsAttachmentChecker(plugin); checked && waits && !missing.Attached && s.generation == generation {
		s.retryAt = time.Now().Add(s.backoff.Fail(work.OperationPause, missing))
	} else {
		s.backoff.Reset()
	}
	if s.state != StateMounted {
		s.enter(StatePending, time.Now())
	}
	if waits {
		s.awaited = generation
	}
	r.status.publish(s)
	if !s.actual.exists() && r.desired.leaves(s.pod) {
		r.actual.drop(s)
	}
}

// attachmentTrouble is what rows say of the volume's attachment. The caller holds the lock.
func (p *publisher) attachmentTrouble(s *podVolume) *AttachmentError {
	trouble := p.awaits(s)
	switch {
	case trouble == nil:
		return nil
	case s.isAwaiting():
		trouble.Err = s.err
	case s.state == StateMounted:
		if trouble.Attached || !p.devices.IsReporting() {
			return nil
		}
		trouble.Mounted = true
	case !s.IsWanted():
		return nil // it waits for nothing but its end
	}
	return trouble
}

// Holding implements [devices.Holder].
func (s *podVolume) Holding() *devices.Holding { return &s.holding }

// Resync implements [devices.Holder].
func (s *podVolume) Resync() {
	if s.IsWanted() {
		s.pod.schedule.resync(s)
	}
}

// Proceed implements [devices.Holder]. What the volume met may have been the state before
// the reports. An operation that is under way looks again when it ends.
func (s *podVolume) Proceed() {
	if s.doing == opNone && (s.isAwaiting() || s.state == StateFailed || s.state == StateDetached) && s.pod.wanted {
		s.pod.schedule.resync(s)
	}
}

// Publish implements [devices.Holder].
func (s *podVolume) Publish() { s.pod.status.publish(s) }
