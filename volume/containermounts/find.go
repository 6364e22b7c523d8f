package containermounts

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/podstate"
)

// unknownContainer says that a pod has no container of a name, and which there are.
func unknownContainer(pod types.NamespacedName, name string, there []string) error {
	return &volume.Failure{
		Cause: ErrUnknownContainer, Subject: name,
		What: fmt.Sprintf("pod %s has no container %q", pod, name),
		Next: "it has " + strings.Join(there, ", "),
	}
}

func findContainer(pod *v1.Pod, name string) (found *v1.Container, at string) {
	podstate.EachContainer(pod, func(spec *v1.Container, field string) bool {
		if spec.Name == name {
			found, at = spec, field
		}
		return found == nil
	})
	return found, at
}

func containerNames(pod *v1.Pod) (names []string) {
	podstate.EachContainer(pod, func(spec *v1.Container, _ string) bool {
		names = append(names, spec.Name)
		return true
	})
	return names
}

// mountedVolume is a volume of a pod that containers can use.
type mountedVolume struct {
	name       string // the pod's
	claim      *v1.PersistentVolumeClaimVolumeSource
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

// subPaths is where parts of the volume are bound.
func (v mountedVolume) subPaths() SubPaths {
	return SubPaths{PodUID: v.record.PodUID, Spec: v.record.Spec().Name()}
}

// failed names the volume as the pod does. An error that names it by its spec says
// which call has failed.
func (v mountedVolume) failed(err error) error {
	return (&volume.Error{Op: "ContainerMounts", Plugin: v.record.Plugin, Volume: v.name, Pod: v.record.Pod, PodUID: v.record.PodUID}).About(err)
}

func podName(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}
