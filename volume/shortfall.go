package volume

import v1 "k8s.io/api/core/v1"

// ShortfallPlugin is implemented by plugins that set some volumes up without
// everything that their pods ask for, and that pods are not refused for. Absent:
// what a volume asks for is done, or it is refused.
type ShortfallPlugin interface {
	VolumePlugin
	// Shortfalls says what the pod asks of the volume and does not get. It does no
	// I/O; the arguments are only read.
	Shortfalls(*Spec, *v1.Pod) []Shortfall
}

// Shortfall is one wish that is not fulfilled, in the words of an event about the
// pod: the manager sends it when the volume is set up for the first time.
type Shortfall struct {
	// Reason is one word such as "SizeLimitNotEnforced".
	Reason string
	// Message says what is not done and what to do; it names the volume.
	Message string
}

// Shortfalls returns what the pod asks of the volume and does not get; nothing
// for plugins that are no [ShortfallPlugin].
func Shortfalls(p VolumePlugin, spec *Spec, pod *v1.Pod) []Shortfall {
	if c, ok := p.(ShortfallPlugin); ok {
		return c.Shortfalls(spec, pod)
	}
	return nil
}
