package podlife

import (
	"bytes"
	"maps"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

// What this node says of a pod changes its status, and nothing that is others'.
func TestStatusIsAllThatIsWritten(t *testing.T) {
	gate := v1.PodCondition{Type: "shop.example/open", Status: v1.ConditionTrue}
	now := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-web", Labels: map[string]string{"app": "web", "tier": "front"}}}
	now.Spec.Volumes = []v1.Volume{{Name: "memory"}}
	now.Status = v1.PodStatus{Phase: v1.PodPending, Reason: "Slow", Message: "soon", QOSClass: v1.PodQOSBestEffort,
		HostIPs: []v1.HostIP{{IP: "192.0.2.7"}}, PodIPs: []v1.PodIP{{IP: "192.0.2.7"}}, Conditions: []v1.PodCondition{gate,
			{Type: v1.PodReady, Status: v1.ConditionFalse, Reason: "ContainersNotReady", Message: "wait"}}}
	api := fake.NewClientset(now)
	old := now.DeepCopy()
	old.Labels, old.Spec.Volumes, old.Annotations = map[string]string{"app": "web"}, nil, map[string]string{"colour": "blue"}
	closed := gate
	closed.Status = v1.ConditionFalse
	old.Status = v1.PodStatus{Phase: v1.PodRunning, HostIPs: []v1.HostIP{{IP: "192.0.2.1"}}, PodIPs: []v1.PodIP{{IP: "192.0.2.1"}},
		Conditions: []v1.PodCondition{closed, {Type: v1.PodReady, Status: v1.ConditionTrue}}}
	patch, err := statusPatch(old)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(patch, []byte(`"metadata":{"uid":"uid-web"}`)) {
		t.Errorf("another pod of that name would get it: %s", patch)
	}
	got, err := api.CoreV1().Pods("shop").Patch(t.Context(), "web", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got.Labels, now.Labels) || len(got.Annotations) != 0 || len(got.Spec.Volumes) != 1 {
		t.Errorf("labels %v, annotations %v, %d volumes", got.Labels, got.Annotations, len(got.Spec.Volumes))
	}
	s := got.Status
	if s.Phase != v1.PodRunning || s.Reason != "" || s.Message != "" || s.QOSClass != v1.PodQOSBestEffort || len(s.HostIPs) != 1 || len(s.PodIPs) != 1 || s.PodIPs[0].IP != "192.0.2.1" {
		t.Errorf("status: %s", s.String())
	}
	if len(s.Conditions) != 2 {
		t.Errorf("conditions: %v", s.Conditions)
	}
	for _, c := range s.Conditions {
		if c.Status != v1.ConditionTrue || c.Reason != "" || c.Message != "" {
			t.Errorf("condition: %v", c)
		}
	}
}
