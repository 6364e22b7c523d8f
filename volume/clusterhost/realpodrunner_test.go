package clusterhost_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/recyclerpod"
)

// hand plays the kubelet: the node changes the status of the pod.
func (n *realNode) hand(change func(*v1.Pod)) {
	n.t.Helper()
	pod, err := n.admin.CoreV1().Pods("ops").Get(n.t.Context(), "recycler-for-pv1", metav1.GetOptions{})
	must(n.t, err)
	change(pod)
	_, err = n.clientset.CoreV1().Pods("ops").UpdateStatus(n.t.Context(), pod, metav1.UpdateOptions{})
	must(n.t, err)
}

// starts has the pod scheduled, and started by its node.
func (n *realNode) starts() {
	n.t.Helper()
	pods := n.admin.CoreV1().Pods("ops")
	until(n.t, "the pod is there", func() bool {
		_, err := pods.Get(n.t.Context(), "recycler-for-pv1", metav1.GetOptions{})
		return err == nil
	})
	must(n.t, pods.Bind(n.t.Context(), &v1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "recycler-for-pv1"}, Target: v1.ObjectReference{Kind: "Node", Name: "node1"}}, metav1.CreateOptions{}))
	n.hand(func(p *v1.Pod) { p.Status.Phase = v1.PodRunning })
}

func recyclerOnANode(t *testing.T, n *realNode) {
	pods := n.admin.CoreV1().Pods("ops")
	r := n.recycler()
	r.runner = clusterhost.NewPodRunner(n.admin, clusterhost.PodRunnerConfig{})
	for name, tc := range map[string]struct {
		end    func()
		failed bool
	}{
		"succeeded": {func() { n.hand(func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }) }, false},
		"failed": {func() {
			n.hand(func(p *v1.Pod) { p.Status.Phase, p.Status.Reason = v1.PodFailed, "Error" })
		}, true},
		"deleted by somebody": {func() {
			must(t, pods.Delete(t.Context(), "recycler-for-pv1", metav1.DeleteOptions{}))
			// Its node ends it, and then lets it go.
			must(t, n.clientset.CoreV1().Pods("ops").Delete(t.Context(), "recycler-for-pv1", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			go func() { r.result <- r.runner.RunPod(t.Context(), r.pod, r.mayRun, r.record) }()
			n.starts()
			n.tells(t, r)
			tc.end()
			err := <-r.result
			if failed := errors.Is(err, recyclerpod.ErrFailed); failed != tc.failed || !failed && err != nil {
				t.Errorf("RunPod: %v", err)
			}
			until(t, "the pod is gone", func() bool {
				_, err := pods.Get(context.Background(), "recycler-for-pv1", metav1.GetOptions{})
				return apierrors.IsNotFound(err)
			})
		})
	}
}

// tells has the node tell something of the pod, and waits until it is recorded.
func (n *realNode) tells(t *testing.T, r *recycler) {
	t.Helper()
	pod, err := n.admin.CoreV1().Pods("ops").Get(t.Context(), "recycler-for-pv1", metav1.GetOptions{})
	must(t, err)
	_, err = n.clientset.CoreV1().Events("ops").Create(t.Context(), &v1.Event{ObjectMeta: metav1.ObjectMeta{GenerateName: "e-"},
		InvolvedObject: v1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "ops", Name: pod.Name, UID: pod.UID}, Type: v1.EventTypeNormal, Reason: "Pulling", Message: "image " + string(pod.UID)}, metav1.CreateOptions{})
	must(t, err)
	until(t, "the event is recorded", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.Contains(r.said, `Normal pod "ops/recycler-for-pv1": Pulling: image `+string(pod.UID))
	})
}
