package volumemanager

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// VolumesInUse returns the unique names, sorted, of the attachable volumes that
// a declared pod wants, from the moment that its claim is resolved, or that are
// still mounted here: what belongs into the node's status.volumesInUse, so that
// they are not detached. A volume leaves the list after its device is unmounted.
// While a record cannot be read, all volumes of its plugin stay listed that are
// reported attached or were reported in use: it may be any of them. While
// [Manager.Damaged] returns an error that goes for all plugins.
//
// Until the manager has recovered the result is nil, which must not be
// reported: what is mounted is not known yet.
//
// The list may have changed when a volume's status says so; see
// [Manager.Subscribe]. Each call must be followed by a report and
// [Manager.ReportedInUse]: a volume that is left out of the list counts as
// unreported from then on.
func (m *Manager) VolumesInUse() []v1.UniqueVolumeName {
	select {
	case <-m.ready:
	default:
		return nil
	}
	damaged := m.Damaged() != nil
	m.mu.Lock()
	defer m.mu.Unlock()
	names := make([]v1.UniqueVolumeName, 0, len(m.node.attachments))
	for name, a := range m.node.attachments {
		if a.inUse() {
			names = append(names, name)
		}
	}
	names = m.node.appendHidden(names, damaged)
	slices.Sort(names)
	names = slices.Compact(names)
	// A report that lacks a volume may be on its way to whoever detaches.
	maps.DeleteFunc(m.node.reported, func(name v1.UniqueVolumeName, _ struct{}) bool {
		_, listed := slices.BinarySearch(names, name)
		return !listed
	})
	return names
}

// appendHidden adds what may be the volumes whose records cannot be read: which
// they are nobody knows, so it is every volume of the same plugins that the
// node's status has. The caller holds the lock.
func (n *nodeDevices) appendHidden(names []v1.UniqueVolumeName, damaged bool) []v1.UniqueVolumeName {
	hidden := make(map[string]bool)
	if damaged {
		hidden[""] = true
	}
	for _, p := range n.pods {
		for _, s := range p.volumes {
			if s.actual.unreadable != nil {
				hidden[s.actual.key.Plugin+"/"] = true
			}
		}
	}
	for prefix := range hidden {
		for name := range n.attached {
			if strings.HasPrefix(string(name), prefix) {
				names = append(names, name)
			}
		}
		for name := range n.reported {
			if strings.HasPrefix(string(name), prefix) {
				names = append(names, name)
			}
		}
	}
	return names
}

// ReportedInUse says which volumes the node's status lists in use, after a
// report of [Manager.VolumesInUse] has reached it; also if the status said so
// before. Reports must follow one another. The volumes that waited for this,
// and are attached, are mounted at once. It never blocks. The slice is not
// kept.
func (m *Manager) ReportedInUse(names []v1.UniqueVolumeName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.node.reported
	m.node.reported = make(map[v1.UniqueVolumeName]struct{}, len(names))
	for _, name := range names {
		m.node.reported[name] = struct{}{}
	}
	for name := range m.node.reported {
		_, was := before[name]
		if a := m.node.attachments[name]; a != nil && !was {
			a.proceed()
		}
	}
}

// SetVolumesAttached says which volumes are attached to this node, all of them:
// the status.volumesAttached of its Node object. Volumes that waited for it and
// are reported in use are mounted at once. A volume that disappears while it is
// mounted has its status say so, and is otherwise left alone. It never blocks.
// The slice is not kept.
//
// What is given must not be older than the report that was acknowledged last:
// the Node that an update of its status returns has both lists.
//
// A manager that is not told which volumes are attached mounts no attachable one;
// the status of each says what it waits for. Where devices are attached by
// other means, that must be said here, and what VolumesInUse returns
// acknowledged.
func (m *Manager) SetVolumesAttached(attached []v1.AttachedVolume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.node.attached
	m.node.attached = make(map[v1.UniqueVolumeName]string, len(attached))
	for _, v := range attached {
		m.node.attached[v.Name] = v.DevicePath
	}
	for name, a := range m.node.attachments {
		was, wasAttached := before[name]
		is, isAttached := m.node.attached[name]
		switch {
		case before == nil, wasAttached != isAttached:
			a.publish()
		case was == is:
			continue
		}
		a.proceed()
	}
}

// AttachmentError says what is amiss with the attachment of a volume: it waits
// for a report, or it was detached although it is mounted.
type AttachmentError struct {
	// Volume is the volume's unique name, which reports are about.
	Volume v1.UniqueVolumeName
	// Node is this node's name.
	Node string
	// ReportedInUse: the node's status lists it; see Manager.ReportedInUse.
	ReportedInUse bool
	// Attached: it is reported attached; see Manager.SetVolumesAttached.
	Attached bool
	// Mounted: it is mounted here.
	Mounted bool
}

func (e *AttachmentError) Error() string {
	switch {
	case e.Mounted:
		return fmt.Sprintf("%s is mounted, but not reported attached to node %s any more; it is left as it is: find out who detached it, and whether the pod can still read its data", e.Volume, e.Node)
	case e.ReportedInUse:
		return fmt.Sprintf("%s waits to be reported attached to node %s", e.Volume, e.Node)
	case e.Attached:
		return fmt.Sprintf("%s waits until the status of node %s lists it in use", e.Volume, e.Node)
	}
	return fmt.Sprintf("%s waits until the status of node %s lists it in use, and to be reported attached", e.Volume, e.Node)
}

// wait is what is waited for.
func (e *AttachmentError) wait() string {
	switch {
	case e.ReportedInUse:
		return fmt.Sprintf("%s to be reported attached to node %s", e.Volume, e.Node)
	case e.Attached:
		return fmt.Sprintf("the status of node %s to list %s in use", e.Node, e.Volume)
	}
	return fmt.Sprintf("the status of node %s to list %s in use, and for it to be reported attached", e.Node, e.Volume)
}

// asError keeps nil what is nil.
func asError(e *AttachmentError) error {
	if e == nil {
		return nil
	}
	return e
}

// attachment is one attachable volume, which volumes of pods here want or have.
// The world's lock guards it.
type attachment struct {
	node  *nodeDevices
	name  v1.UniqueVolumeName
	users map[*podVolume]struct{}
}

// inUse reports whether the volume may not be detached.
func (a *attachment) inUse() bool {
	for s := range a.users {
		if s.actual.exists() || s.wanted && s.pod.wanted {
			return true
		}
	}
	return false
}

// proceed has those go on that waited for the reports that are now there, and
// those that have failed too, since what they met may have been the old state.
// An operation that is under way looks again when it ends.
func (a *attachment) proceed() {
	for s := range a.users {
		if s.doing == opNone && (s.isAwaiting() || s.state == StateFailed || s.state == StateDetached) && s.pod.wanted && s.awaits() == nil {
			a.node.resync(s)
		}
	}
}

func (a *attachment) publish() {
	for s := range a.users {
		a.node.publish(s)
	}
}

// join makes a volume count as one that wants or has the attachable volume; a
// nil use, or one of nothing attachable: none. A volume that has one keeps it.
// The caller holds the lock.
func (n *nodeDevices) join(s *podVolume, use *deviceUse) {
	var name v1.UniqueVolumeName
	if use != nil && use.attach != nil {
		name = use.device.name
	}
	if s.attachment != nil {
		if s.attachment.name == name || s.actual.exists() {
			return
		}
		n.leave(s)
	}
	if name == "" {
		return
	}
	a := n.attachments[name]
	if a == nil {
		a = &attachment{node: n, name: name, users: make(map[*podVolume]struct{})}
		n.attachments[name] = a
	}
	a.users[s] = struct{}{}
	s.attachment = a
}

// leave undoes join. The caller holds the lock.
func (n *nodeDevices) leave(s *podVolume) {
	a := s.attachment
	if a == nil {
		return
	}
	s.attachment = nil
	delete(a.users, s)
	if len(a.users) == 0 {
		delete(n.attachments, a.name)
	}
}

// awaits says which reports must come before the volume is mounted; nil:
// none. The caller holds the world's lock.
func (s *podVolume) awaits() *AttachmentError {
	a := s.attachment
	if a == nil {
		return nil
	}
	_, reported := a.node.reported[a.name]
	_, attached := a.node.attached[a.name]
	if reported && attached {
		return nil
	}
	return &AttachmentError{Volume: a.name, Node: a.node.config.NodeName, ReportedInUse: reported, Attached: attached}
}

// admissible refuses to have a volume mounted before the reports are there. One
// that is mounted already may be looked at again. The caller holds the lock.
func (s *podVolume) admissible() error {
	if s.state == StateMounted && s.actual.exists() {
		return nil
	}
	return asError(s.awaits())
}

// isAwaiting reports whether the volume does nothing until a report comes, or
// another reason to look at it again.
func (s *podVolume) isAwaiting() bool {
	return s.attachment != nil && s.generation > 0 && s.awaited == s.generation
}

// finishWaiting takes down that an operation ended since a report is missing,
// if it did; this is no failure, and no attempt either: those that wait for one
// go on waiting. The caller holds the lock.
func (r *reconciler) finishWaiting(s *podVolume, generation int, err error) bool {
	if _, missing := errors.AsType[*AttachmentError](err); !missing {
		return false
	}
	s.failures, s.pauses, s.err = 0, 0, nil
	if s.state != StateMounted {
		r.enter(s, StatePending, time.Now())
	}
	if s.awaits() != nil {
		s.awaited = generation
	}
	r.publish(s)
	if !s.actual.exists() && r.leaves(s.pod) {
		r.drop(s)
	}
	return true
}

// attachmentTrouble is what the volume's rows say of its attachment. The caller
// holds the world's lock.
func (s *podVolume) attachmentTrouble() *AttachmentError {
	trouble := s.awaits()
	switch {
	case trouble == nil:
		return nil
	case s.isAwaiting():
	case s.state == StateMounted:
		if trouble.Attached || s.attachment.node.attached == nil { // nobody has said anything yet
			return nil
		}
		trouble.Mounted = true
	case !(s.wanted && s.pod.wanted):
		return nil // it waits for nothing but its end
	}
	return trouble
}
