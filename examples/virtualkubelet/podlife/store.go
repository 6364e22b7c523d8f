package podlife

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/retry"
)

// store writes the pod's status until the API server has it, and returns false where ctx
// has ended before. A pod that is not there any more has no status.
func (l *life) store(ctx context.Context) bool {
	if l.static {
		return l.storeMirror(ctx)
	}
	pause := retry.Pause{First: 100 * time.Millisecond, Last: 10 * time.Second}
	for {
		l.mu.Lock()
		has := l.pod
		l.mu.Unlock()
		now := l.snapshot()
		patch, err := statusPatch(now)
		old, oldErr := statusPatch(has)
		if err != nil || oldErr != nil {
			l.pods.Log.Error("a pod's status cannot be said", "pod", l.name, "error", err)
			return true
		}
		if bytes.Equal(patch, old) {
			return true
		}
		stored, err := l.pods.API.CoreV1().Pods(l.name.Namespace).Patch(ctx, l.name.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		switch {
		case err == nil:
			l.mu.Lock()
			if l.pod == has { // else the informer has been faster
				l.pod = stored.DeepCopy()
			}
			l.mu.Unlock()
			return true
		case l.isGone(ctx, err):
			return true
		case ctx.Err() != nil:
			return false
		case apierrors.IsInvalid(err):
			l.pods.Log.Warn("the API server refuses a pod's status", "pod", l.name, "error", err)
			return true
		}
		l.pods.Log.Warn("a pod's status is not stored yet", "pod", l.name, "error", err)
		if !pause.Wait(ctx) {
			return false
		}
	}
}

// deleteObject deletes the pod for good, if it is the one of that UID.
func (l *life) deleteObject(ctx context.Context) bool {
	if l.static {
		return l.deleteOwnMirror(ctx)
	}
	options := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &l.uid}}
	return l.pods.until(ctx, "a pod that has gone is not deleted", func() error {
		err := l.pods.API.CoreV1().Pods(l.name.Namespace).Delete(ctx, l.name.Name, options)
		if l.isGone(ctx, err) {
			return nil
		}
		return err
	})
}

// isGone reports whether a request has failed since the pod is not there any more, or is
// another one. A conflict may also be that of two writers.
func (l *life) isGone(ctx context.Context, err error) bool {
	if !apierrors.IsConflict(err) {
		return apierrors.IsNotFound(err)
	}
	is, err := l.pods.API.CoreV1().Pods(l.name.Namespace).Get(ctx, l.name.Name, metav1.GetOptions{})
	return apierrors.IsNotFound(err) || err == nil && is.UID != l.uid
}

// ownConditions are those that this node sets. Others, such as readiness gates,
// are another program's. DisruptionTarget may be both.
var ownConditions = []v1.PodConditionType{v1.PodReadyToStartContainers, v1.PodInitialized, v1.ContainersReady, v1.PodReady, v1.PodResizePending, v1.DisruptionTarget}

// statusPatch sets what this node knows of a pod, if it is the one of that UID.
func statusPatch(pod *v1.Pod) ([]byte, error) {
	s := &pod.Status
	own := v1.PodStatus{
		Phase: s.Phase, Reason: s.Reason, Message: s.Message, StartTime: s.StartTime, HostIP: s.HostIP, HostIPs: s.HostIPs, PodIP: s.PodIP, PodIPs: s.PodIPs,
		InitContainerStatuses: s.InitContainerStatuses, ContainerStatuses: s.ContainerStatuses, EphemeralContainerStatuses: s.EphemeralContainerStatuses,
		Conditions: slices.DeleteFunc(slices.Clone(s.Conditions), func(c v1.PodCondition) bool { return !slices.Contains(ownConditions, c.Type) }),
	}
	slices.SortFunc(own.Conditions, func(a, b v1.PodCondition) int {
		return slices.Index(ownConditions, a.Type) - slices.Index(ownConditions, b.Type)
	})
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
