package podlife

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
)

// Who asks for other resources of a running container is told once that it keeps its own,
// until they are asked for again.
func TestResizeIsRefused(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *world) {
		memory := func(size string) v1.ResourceRequirements {
			return v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse(size)}}
		}
		pod := w.put(func(p *v1.Pod) { p.Spec.Containers[0].Resources = memory("1Gi") })
		ask := func(change func(*v1.Pod)) {
			pod = pod.DeepCopy()
			change(pod)
			w.pods.Put(pod)
		}
		pending := func() string {
			t.Helper()
			all := w.get().Status.Conditions
			i := slices.IndexFunc(all, func(c v1.PodCondition) bool { return c.Type == v1.PodResizePending })
			if i < 0 || all[i].Status == v1.ConditionFalse && all[i].Reason == "" {
				return ""
			}
			if all[i].Status != v1.ConditionTrue || all[i].LastTransitionTime.IsZero() {
				t.Errorf("got %v", all[i])
			}
			return all[i].Reason + ": " + all[i].Message
		}
		ask(func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} })
		if got := pending(); got != "" {
			t.Errorf("nobody has asked: %s", got)
		}
		for range 2 {
			ask(func(p *v1.Pod) { p.Spec.Containers[0].Resources = memory("2Gi") })
			if got := pending(); !strings.HasPrefix(got, "Infeasible: ") || !strings.Contains(got, "(main)") {
				t.Errorf("got %q", got)
			}
		}
		ask(func(p *v1.Pod) { p.Spec.Containers[0].Resources = memory("1024Mi") })
		if got := pending(); got != "" {
			t.Errorf("it has what is asked for: %s", got)
		}
		told := 0
		for events := w.pods.Events.(*record.FakeRecorder).Events; len(events) > 0; {
			if strings.Contains(<-events, "Warning ResizeInfeasible") {
				told++
			}
		}
		if told != 1 || len(w.started()) != 1 {
			t.Errorf("told %d times, started %d times", told, len(w.started()))
		}
	})
}

// A refusal that an earlier agent has told of stays, since its container goes on.
func TestRefusedResizeOutlivesTheAgent(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *world) {
		w.put(func(p *v1.Pod) {
			p.Status.Conditions = []v1.PodCondition{{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: v1.PodReasonInfeasible, LastTransitionTime: metav1.Now()}}
		})
		if all := w.get().Status.Conditions; !slices.ContainsFunc(all, func(c v1.PodCondition) bool { return c.Type == v1.PodResizePending }) {
			t.Errorf("got %v", all)
		}
	})
}
