package volumestatus

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// PodVolumes are the volumes of one pod, in the pod's order.
type PodVolumes struct {
	Pod     types.NamespacedName
	PodUID  types.UID
	Volumes []Status
}

// Path returns where the pod's containers find the volume of this name, and
// whether it is mounted.
func (p *PodVolumes) Path(volumeName string) (string, bool) {
	i := slices.IndexFunc(p.Volumes, func(s Status) bool { return s.Volume == volumeName })
	if i < 0 || p.Volumes[i].State != StateMounted {
		return "", false
	}
	return p.Volumes[i].Path, true
}

// PodError collects what went wrong with the volumes of one pod.
type PodError struct {
	// Op is "set up" or "tear down".
	Op     string
	Pod    types.NamespacedName
	PodUID types.UID
	// Errs are the failures, one a volume, in the pod's order.
	Errs []error
}

func (e *PodError) Error() string {
	pod := "pod " + e.Pod.String()
	if e.Pod.Name == "" {
		pod = "the pod with UID " + string(e.PodUID)
	}
	lines := make([]string, 0, 1+len(e.Errs))
	lines = append(lines, fmt.Sprintf("%d of the volumes of %s could not be %s:", len(e.Errs), pod, past(e.Op)))
	for _, err := range e.Errs {
		lines = append(lines, err.Error())
	}
	return strings.Join(lines, "\n")
}

func past(op string) string {
	if op == "tear down" {
		return "torn down"
	}
	return op // "set up" is its own participle
}

// Unwrap returns the failures.
func (e *PodError) Unwrap() []error { return e.Errs }
