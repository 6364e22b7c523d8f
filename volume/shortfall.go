package volume

import v1 "k8s.io/api/core/v1"

// ShortfallPlugin is implemented by plugins that set some volumes up although a
// pod's option is not fulfilled. Absent: a volume gets all its options, or it is
// refused.
type ShortfallPlugin interface {
	VolumePlugin
	// Shortfalls returns the options of the volume that are not fulfilled for the
	// pod. It does no I/O. It only reads the arguments.
	Shortfalls(*Spec, *v1.Pod) []Shortfall
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
func Shortfalls(p VolumePlugin, spec *Spec, pod *v1.Pod) []Shortfall {
	if c, ok := p.(ShortfallPlugin); ok {
		return c.Shortfalls(spec, pod)
	}
	return nil
}
