package main

import (
	"context"
	"encoding/json"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// patching writes what a provider says of pods, and nothing else of them, as the
// kubelet does. virtual-kubelet v1.12 updates the status with the pod that the
// provider gave it last, at any version; an API server takes labels and annotations from
// that, too, and so back what was changed meanwhile. NodeRestriction
// refuses it for that.
type patching struct{ corev1client.PodsGetter }

func (p patching) Pods(namespace string) corev1client.PodInterface {
	return patchingPods{p.PodsGetter.Pods(namespace)}
}

type patchingPods struct{ corev1client.PodInterface }

func (p patchingPods) UpdateStatus(ctx context.Context, pod *v1.Pod, options metav1.UpdateOptions) (*v1.Pod, error) {
	patch, err := statusPatch(pod)
	if err != nil {
		return nil, err
	}
	return p.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: options.FieldManager}, "status")
}

// ownConditions are those that this node sets. Others, such as readiness gates,
// are another program's.
var ownConditions = []v1.PodConditionType{v1.PodReadyToStartContainers, v1.PodInitialized, v1.ContainersReady, v1.PodReady}

// statusPatch sets what this node knows of a pod, if it is the one of that UID.
func statusPatch(pod *v1.Pod) ([]byte, error) {
	own := v1.PodStatus{
		Phase: pod.Status.Phase, Reason: pod.Status.Reason, Message: pod.Status.Message, StartTime: pod.Status.StartTime, ContainerStatuses: pod.Status.ContainerStatuses,
		HostIP: pod.Status.HostIP, HostIPs: pod.Status.HostIPs, PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs,
		Conditions: slices.DeleteFunc(slices.Clone(pod.Status.Conditions), func(c v1.PodCondition) bool { return !slices.Contains(ownConditions, c.Type) }),
	}
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&own)
	if err != nil {
		return nil, err
	}
	clearing := []any{status} // conditions are merged by type, and what a patch does not name stays
	if conditions, ok := status["conditions"].([]any); ok {
		clearing = append(clearing, conditions...)
	}
	for _, part := range clearing {
		for _, field := range []string{"reason", "message"} {
			if part := part.(map[string]any); part[field] == nil {
				part[field] = ""
			}
		}
	}
	for _, field := range []string{"hostIPs", "podIPs"} { // merged by address otherwise, so that old ones would stay
		if all, ok := status[field].([]any); ok {
			status[field] = append([]any{map[string]any{"$patch": "replace"}}, all...)
		}
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
}
