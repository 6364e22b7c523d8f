package volumestatus

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/internal/podspec"
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

// PendingVolumes are the volumes of a pod with which nothing was done yet. The pod may be nil.
func PendingVolumes(pod *v1.Pod) *PodVolumes {
	if pod == nil {
		return &PodVolumes{}
	}
	result := &PodVolumes{Pod: podspec.Name(pod), PodUID: pod.UID, Volumes: make([]Status, len(pod.Spec.Volumes))}
	now := time.Now()
	for i, v := range pod.Spec.Volumes {
		result.Volumes[i] = Status{Pod: result.Pod, PodUID: pod.UID, Volume: v.Name, State: StatePending, Since: now}
	}
	return result
}

// Fail gives every volume the same error.
func (p *PodVolumes) Fail(err error) *PodVolumes {
	for i := range p.Volumes {
		p.Volumes[i].State, p.Volumes[i].Err = StateFailed, err
	}
	return p
}

// IsMounted reports whether every volume is that a container uses.
func (p *PodVolumes) IsMounted() bool {
	return !slices.ContainsFunc(p.Volumes, func(v Status) bool {
		return v.State != StateMounted && v.State != StateUnused || v.Err != nil
	})
}

// Err collects the errors of the volumes; ended is why a wait ended early, if
// no volume says it.
func (p *PodVolumes) Err(op string, ended error) error {
	var errs []error
	for _, v := range p.Volumes {
		if v.Err != nil {
			errs = append(errs, v.Err)
		}
	}
	if len(errs) == 0 {
		return ended
	}
	return &PodError{Op: op, Pod: p.Pod, PodUID: p.PodUID, Errs: errs}
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
	if op == TearDown {
		return "torn down"
	}
	return op // "set up" is its own participle
}

// Unwrap returns the failures.
func (e *PodError) Unwrap() []error { return e.Errs }
