package podlife

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// An evicted pod ends at once, whatever its grace period, and has failed.
func TestEvict(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *world) {
		pod := w.put(func(*v1.Pod) {})
		if pods := w.pods.Evictable(); len(pods) != 1 || pods[0].UID != pod.UID {
			t.Errorf("evictable are %v", pods)
		}
		w.pods.Evict(pod.UID, "it takes too much.")
		w.pods.Evict(pod.UID, "it still does.")
		time.Sleep(2 * time.Second)
		status := w.get().Status
		if status.Phase != v1.PodFailed || status.Reason != "Evicted" || status.Message != "it takes too much." || len(w.started()) != 1 {
			t.Errorf("it is %s, %s: %s, after %d starts", status.Phase, status.Reason, status.Message, len(w.started()))
		}
		if !slices.ContainsFunc(status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == "TerminationByKubelet" && c.Message == status.Message
		}) {
			t.Errorf("conditions %v", status.Conditions)
		}
		if pods := w.pods.Evictable(); len(pods) != 0 {
			t.Errorf("still evictable are %v", pods)
		}
	})
}

func TestNotEvicted(t *testing.T) {
	for name, change := range map[string]func(*v1.Pod){
		"critical": func(p *v1.Pod) { p.Spec.Priority = new(int32(2_000_001_000)) },
		"static":   func(p *v1.Pod) { p.Annotations = map[string]string{SourceAnnotation: FromFile} },
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, w *world) {
				pod := w.put(change)
				w.pods.Evict(pod.UID, "it takes too much.")
				time.Sleep(time.Minute)
				if pods := w.pods.Evictable(); len(pods) != 0 || len(w.started()[0].stops) != 0 {
					t.Errorf("evictable are %v; it was asked to end: %v", pods, w.started()[0].stops)
				}
			})
		})
	}
}

// A deleted pod ends within its own time.
func TestNotEvictedWhileItEnds(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *world) {
		pod := w.put(func(*v1.Pod) {})
		w.remove(pod, 20)
		time.Sleep(time.Second)
		w.pods.Evict(pod.UID, "it takes too much.")
		time.Sleep(time.Second)
		if status := w.get().Status; status.Reason != "" || len(w.pods.Evictable()) != 0 {
			t.Errorf("its reason is %s", status.Reason)
		}
	})
}
