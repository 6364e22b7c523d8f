package volumemanager

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
)

// unknownContainer says that a pod has no container of a name, and which there are.
func unknownContainer(pod types.NamespacedName, name string, there []string) error {
	return &volume.Failure{
		Cause: ErrUnknownContainer, Subject: name,
		What: fmt.Sprintf("pod %s has no container %q", pod, name),
		Next: "it has " + strings.Join(there, ", "),
	}
}

// NotMountedError says why a volume cannot be shown to a container yet.
type NotMountedError struct {
	// Waits says what the volume waits for.
	Waits string
	// Last is the error of the last attempt, if one has failed.
	Last error
	// Attachment is the report that it waits for, if it waits for one.
	Attachment *AttachmentError
}

func (e *NotMountedError) Error() string {
	text := "it is not mounted, but waits for " + e.Waits
	if e.Last != nil {
		text += fmt.Sprintf("; the last attempt failed: %v", e.Last)
	}
	return text
}

// Unwrap returns the last attempt's error and the attachment's.
func (e *NotMountedError) Unwrap() (errs []error) {
	if e.Last != nil {
		errs = append(errs, e.Last)
	}
	if e.Attachment != nil {
		errs = append(errs, e.Attachment)
	}
	return errs
}

// containerOf finds a container of a pod that is declared.
func (m *Manager) containerOf(podUID types.UID, name string, options ContainerOptions) (*container, error) {
	pod, err := m.declaredPod(podUID)
	if err != nil {
		return nil, err
	}
	spec, field := findContainer(pod, name)
	if spec == nil {
		return nil, unknownContainer(podName(pod), name, containerNames(pod))
	}
	c := &container{m: m, pod: pod, spec: spec, field: field, options: options}
	return c, c.checkMappings()
}

// declaredPod returns the pod as it was declared last, which nobody changes.
func (m *Manager) declaredPod(podUID types.UID) (*v1.Pod, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.pods[podUID]
	switch {
	case !ok || p.pod == nil:
		return nil, ErrUnknownPod
	case !p.wanted:
		return nil, ErrWithdrawn
	}
	return p.pod, nil
}

// eachContainer calls f for the pod's containers of all kinds until it returns
// false.
func eachContainer(pod *v1.Pod, f func(spec *v1.Container, field string) bool) {
	for i := range pod.Spec.InitContainers {
		if !f(&pod.Spec.InitContainers[i], fmt.Sprintf("spec.initContainers[%d]", i)) {
			return
		}
	}
	for i := range pod.Spec.Containers {
		if !f(&pod.Spec.Containers[i], fmt.Sprintf("spec.containers[%d]", i)) {
			return
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		common := v1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		if !f(&common, fmt.Sprintf("spec.ephemeralContainers[%d]", i)) {
			return
		}
	}
}

func findContainer(pod *v1.Pod, name string) (found *v1.Container, at string) {
	eachContainer(pod, func(spec *v1.Container, field string) bool {
		if spec.Name == name {
			found, at = spec, field
		}
		return found == nil
	})
	return found, at
}

func containerNames(pod *v1.Pod) (names []string) {
	eachContainer(pod, func(spec *v1.Container, _ string) bool {
		names = append(names, spec.Name)
		return true
	})
	return names
}

// mountedVolume is a volume of a pod that containers can use.
type mountedVolume struct {
	name       string // the pod's
	claim      *v1.PersistentVolumeClaimVolumeSource
	key        volumeKey
	record     *mountrecord.Record
	attributes volume.Attributes
}

func (v mountedVolume) isBlock() bool { return v.record.Spec().IsBlock() }

// readOnly reports whether no container can write to the volume by this name. A
// claim that the pod names twice is mounted writable if one of the names is.
func (v mountedVolume) readOnly() bool {
	return v.attributes.ReadOnly || v.record.ReadOnly || v.claim != nil && v.claim.ReadOnly
}

// relabelled reports whether the runtime gives the files the container's label, as
// the kubelet has it done: not where nothing is written (Managed), nor where the
// mount has the label.
func (v mountedVolume) relabelled() bool {
	return v.attributes.Managed && v.attributes.SELinuxRelabel && v.record.SELinuxLabel == ""
}

func (v mountedVolume) failed(err error) error { return wrap(v.record, v.name, "ContainerMounts", err) }

// mountedVolume finds a volume of the pod, which must be mounted.
func (m *Manager) mountedVolume(pod *v1.Pod, name string) (mountedVolume, error) {
	v := mountedVolume{name: name, record: &mountrecord.Record{PodUID: pod.UID, Pod: podName(pod)}}
	i := slices.IndexFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
	if i >= 0 { // else validation has let it pass, and no slot has it
		v.claim = pod.Spec.Volumes[i].PersistentVolumeClaim
	}
	m.mu.Lock()
	s, err := m.usable(pod, name)
	if err == nil {
		v.key, v.record = s.actual.key, s.actual.record
	}
	m.mu.Unlock()
	if err != nil {
		return v, v.failed(err)
	}
	// A restart forgets the mounter, and the record has no attributes: what says
	// how a volume is mounted is its spec, and the plugin needs no I/O for it.
	plugin, err := m.plugins.FindPluginByName(v.record.Plugin)
	if err != nil {
		return v, v.failed(err)
	}
	if v.isBlock() {
		v.attributes.ReadOnly = offersOnlyReading(v.record.PersistentVolume)
		return v, nil
	}
	mounter, err := plugin.NewMounter(v.record.Spec(), pod)
	if err != nil {
		return v, v.failed(err)
	}
	v.attributes = mounter.GetAttributes()
	return v, nil
}

// usable returns the slot of a volume that containers can use now. The caller
// holds the lock.
func (m *Manager) usable(pod *v1.Pod, name string) (*slot, error) {
	p := m.pods[pod.UID]
	if p == nil || !p.wanted {
		return nil, ErrWithdrawn
	}
	s := p.find(func(s *slot) bool { return s.wanted && slices.Contains(s.names, name) })
	if s == nil {
		return nil, volume.NothingDone(&NotMountedError{Waits: "the pod to be declared with it"})
	}
	// What was rebuilt from a directory's name is not known well enough.
	if s.state == StateMounted && s.actual.record != nil && !s.actual.record.Rebuilt && s.doing != opTearDown {
		return s, nil
	}
	return nil, volume.NothingDone(s.notMounted(name))
}

// notMounted says what a volume waits for. The caller holds the lock.
func (s *slot) notMounted(name string) *NotMountedError {
	rows := s.rows()
	i := max(0, slices.IndexFunc(rows, func(r VolumeStatus) bool { return r.Volume == name }))
	e := &NotMountedError{Last: rows[i].Err}
	e.Waits, e.Attachment = rows[i].waitsFor("its set-up to begin")
	if own, ok := e.Last.(*volume.Error); ok {
		e.Last = own.Err // whoever wraps this says whose it is
	}
	return e
}
