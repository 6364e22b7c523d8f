package podlife

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// resizeAsked returns a message if the pod asks for containers with other resources than this
// node starts them with; empty: no container differs. l.mu is held.
func (l *life) resizeAsked() string {
	var names []string
	for _, list := range [][]v1.Container{l.pod.Spec.InitContainers, l.pod.Spec.Containers} {
		for i := range list {
			for _, c := range l.all {
				if c.spec.Name == list[i].Name && !apiequality.Semantic.DeepEqual(c.spec.Resources, list[i].Resources) {
					names = append(names, list[i].Name)
				}
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("this node does not change the resources of containers (%s); create the pod anew", strings.Join(names, ", "))
}

// refuseResize takes note of a changed pod, and returns a message if there is a new one. While
// this agent was not asked for a resize, the status keeps its condition: an earlier agent may
// have set it. l.mu is held.
func (l *life) refuseResize() (news string) {
	asked := l.resizeAsked()
	if asked == "" && l.resize == nil || l.resize != nil && asked == *l.resize {
		return ""
	}
	l.resize, l.resizeSince = &asked, now()
	return asked
}

// fillInResize says that a resize is not possible here, as a kubelet does of one that it will
// never make. l.mu is held.
func (l *life) fillInResize(status *v1.PodStatus) {
	if l.resize == nil {
		return
	}
	c := v1.PodCondition{Type: v1.PodResizePending, Status: v1.ConditionFalse, LastTransitionTime: l.resizeSince}
	if *l.resize != "" {
		c.Status, c.Reason, c.Message = v1.ConditionTrue, v1.PodReasonInfeasible, *l.resize
	}
	status.Conditions = slices.DeleteFunc(status.Conditions, func(old v1.PodCondition) bool { return old.Type == c.Type })
	status.Conditions = append(status.Conditions, c)
}
