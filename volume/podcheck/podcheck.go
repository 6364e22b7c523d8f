// Package podcheck has what a plugin may say of a pod before it sets the pod's volumes up:
// that the pod asks for something that the plugin does not understand ([Check]), or that
// an option of a volume will not be fulfilled ([Shortfalls]).
package podcheck

import (
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// Plugin is implemented by plugins that read more of a pod than its
// volumes, such as annotations. Absent: nothing else can be wrong.
type Plugin interface {
	volume.VolumePlugin
	// CheckPod refuses a pod that asks the plugin for something it does not
	// understand, or for volumes that are not the plugin's. Its errors are
	// *[volume.InvalidSpecError]s with the mark of [volume.NothingDone].
	//
	//   - It does no I/O.
	//   - It is called for every pod, whatever volumes the pod has.
	//   - It counts for new pods only. Annotations change while a pod runs. So a
	//     mounter can meet annotations that it does not understand, too. It then
	//     leaves alone what it has mounted.
	CheckPod(*v1.Pod) error
}

// Check returns the error of p's CheckPod. It is nil for plugins that are no
// [Plugin].
func Check(p volume.VolumePlugin, pod *v1.Pod) error {
	if c, ok := p.(Plugin); ok {
		return c.CheckPod(pod)
	}
	return nil
}

// ShortfallPlugin is implemented by plugins that set some volumes up although a
// pod's option is not fulfilled. Absent: a volume gets all its options, or it is
// refused.
type ShortfallPlugin interface {
	volume.VolumePlugin
	// Shortfalls returns the options of the volume that are not fulfilled for the
	// pod. It does no I/O. It only reads the arguments.
	Shortfalls(*volume.Spec, *v1.Pod) []Shortfall
}

// Shortfall is one option that is not fulfilled, in the words of an event about
// the pod. The manager sends the event when the volume is set up for the first
// time.
type Shortfall struct {
	// Reason is one word such as "SizeLimitNotEnforced".
	Reason string
	// Message says which part is left undone and what to do. It names the volume.
	Message string
}

// Shortfalls returns the options of the volume that are not fulfilled for the pod.
// It is nil for plugins that are no [ShortfallPlugin].
func Shortfalls(p volume.VolumePlugin, spec *volume.Spec, pod *v1.Pod) []Shortfall {
	if c, ok := p.(ShortfallPlugin); ok {
		return c.Shortfalls(spec, pod)
	}
	return nil
}
