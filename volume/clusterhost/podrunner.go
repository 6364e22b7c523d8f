package clusterhost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/podvol/podvol/volume"
)

const (
	// askAgain is how often it is asked whether a pod may still run.
	askAgain = 3 * time.Second
	// overdue is how long after its deadline a pod may be without an end.
	overdue = 2 * time.Minute
	// cleanUpTime bounds the removal of a pod for which there is no ctx any more.
	cleanUpTime = 10 * time.Second
)

// PodRunnerConfig is the configuration of [PodRunner]; its zero value works.
type PodRunnerConfig struct {
	// Logger takes what is of no consequence for a pod: events that could not be
	// watched, for example; nil: nobody does.
	Logger *slog.Logger
}

// PodRunner is a [volume.PodRunner] over the API. It is safe for concurrent use,
// also by several processes: a pod is found again by its name.
type PodRunner struct {
	clientset kubernetes.Interface
	logger    *slog.Logger
}

var _ volume.PodRunner = (*PodRunner)(nil)

// NewPodRunner returns a runner that makes no request yet.
func NewPodRunner(clientset kubernetes.Interface, config PodRunnerConfig) *PodRunner {
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	return &PodRunner{clientset: clientset, logger: config.Logger}
}

// ForeignPodError says that there is another pod of the name that was to run.
type ForeignPodError struct {
	Pod types.NamespacedName
	// Label is its [volume.RecyclerLabel]; empty if it has none.
	Label string
}

func (e *ForeignPodError) Error() string {
	return fmt.Sprintf("there is a pod %q that has the label %s=%q and so was made for something else; it is left alone: delete it if nobody needs it", e.Pod, volume.RecyclerLabel, e.Label)
}

// OverduePodError says that a pod has not ended in time and nobody says why, so
// that what it does is not known.
type OverduePodError struct {
	Pod types.NamespacedName
	// Node is where it runs; empty if nowhere.
	Node string
}

func (e *OverduePodError) Error() string {
	if e.Node == "" {
		return fmt.Sprintf("pod %q was not started in time, and is removed; see its events, and whether a node fits it", e.Pod)
	}
	return fmt.Sprintf("pod %q is past its deadline and has not ended; what it does on node %q is not known: see whether that node runs, and delete its Node if it never will again", e.Pod, e.Node)
}

// RunPod implements [volume.PodRunner]. A leftover that has the pod's
// [volume.RecyclerLabel] is waited for, or taken for the result if it has ended;
// one that is being deleted is waited for, and the pod created after it. Another
// pod of that name is a *[ForeignPodError].
//
// A pod that somebody deletes before it has ended is a *[volume.PodFailedError]. One
// that has not ended two minutes after its activeDeadlineSeconds, counted from its
// start, or else from its creation, is an *[OverduePodError]: its node is lost, and it
// is left there with its deletion requested.
func (r *PodRunner) RunPod(ctx context.Context, pod *v1.Pod, mayRun func(ctx context.Context) error, record volume.RecycleEventRecorder) error {
	run := &podRun{PodRunner: r, want: pod, mayRun: mayRun, record: record, name: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}}
	if run.record == nil {
		run.record = func(string, string) {}
	}
	err := run.do(ctx)
	if ctx.Err() != nil && run.pod != nil {
		err = errors.Join(err, run.abandon(ctx))
	}
	return err
}

// podRun is one call of RunPod.
type podRun struct {
	*PodRunner
	want   *v1.Pod
	mayRun func(context.Context) error
	record volume.RecycleEventRecorder
	name   types.NamespacedName

	// pod is the last state of the pod that is waited for; nil: there is none.
	pod *v1.Pod
}

func (r *podRun) do(ctx context.Context) error {
	for {
		pod, err := r.find(ctx)
		if err != nil {
			return err
		}
		leaving := pod.DeletionTimestamp != nil
		ended, result, err := r.follow(ctx, pod)
		switch {
		case err != nil:
			return err
		case ended:
			return errors.Join(result, r.remove(ctx, nil))
		case leaving: // it was on its way out before it was found
			r.pod = nil
			continue
		}
		r.pod = nil
		return &volume.PodFailedError{Pod: r.name, Reason: "Deleted", Message: "somebody has deleted it before it had ended"}
	}
}

// find returns the pod to wait for: one that is there, or a new one.
func (r *podRun) find(ctx context.Context) (*v1.Pod, error) {
	for {
		if err := r.mayRun(ctx); err != nil {
			return nil, r.refused(ctx, err)
		}
		// A copy, since encoding an object changes it for a moment.
		pod, err := r.clientset.CoreV1().Pods(r.name.Namespace).Create(ctx, r.want.DeepCopy(), metav1.CreateOptions{})
		if err == nil {
			return pod, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, r.failed("create", err)
		}
		pod, err = r.get(ctx)
		switch {
		case err != nil:
			return nil, err
		case pod != nil:
			return pod, r.check(pod)
		}
	}
}

// refused removes a pod that may not run, if there is one of ours.
func (r *podRun) refused(ctx context.Context, reason error) error {
	if ctx.Err() != nil {
		return reason
	}
	pod, err := r.get(ctx)
	if err != nil || pod == nil || r.check(pod) != nil {
		return errors.Join(reason, err)
	}
	r.pod = pod
	return errors.Join(reason, r.removeAtOnce(ctx))
}

// get returns the pod of this name, nil if there is none.
func (r *podRun) get(ctx context.Context) (*v1.Pod, error) {
	pod, err := r.clientset.CoreV1().Pods(r.name.Namespace).Get(ctx, r.name.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		return pod, nil
	case missingKind(err) == "pods":
		return nil, nil
	}
	return nil, r.failed("get", err)
}

func (r *podRun) check(pod *v1.Pod) error {
	if pod.Labels[volume.RecyclerLabel] != r.want.Labels[volume.RecyclerLabel] {
		return &ForeignPodError{Pod: r.name, Label: pod.Labels[volume.RecyclerLabel]}
	}
	return nil
}

func (r *podRun) failed(op string, err error) error {
	return fmt.Errorf("%s pod %q: %w", op, r.name, err)
}

// follow waits until the pod has ended, or is gone.
func (r *podRun) follow(ctx context.Context, pod *v1.Pod) (ended bool, result, err error) {
	r.pod = pod
	feed, stop := r.feed(pod)
	defer stop()
	ask := time.NewTicker(askAgain)
	defer ask.Stop()
	for {
		if ended, result := volume.PodResult(r.pod); ended {
			return true, result, nil
		}
		if err := r.inTime(ctx); err != nil {
			return false, nil, err
		}
		select {
		case seen := <-feed.pods:
			if seen.pod == nil || seen.pod.UID != pod.UID {
				return false, nil, nil
			}
			r.pod = seen.pod
			if seen.gone {
				ended, result := volume.PodResult(seen.pod)
				return ended, result, nil
			}
		case e := <-feed.events:
			r.record(e.Type, fmt.Sprintf("pod %q: %s: %s", r.name, e.Reason, e.Message))
		case <-ask.C:
			if err := r.mayRun(ctx); err != nil {
				if ctx.Err() != nil {
					return false, nil, context.Cause(ctx)
				}
				return false, nil, errors.Join(err, r.removeAtOnce(ctx))
			}
		case <-ctx.Done():
			return false, nil, context.Cause(ctx)
		}
	}
}

// inTime gives a pod up that is past its deadline.
func (r *podRun) inTime(ctx context.Context) error {
	if r.pod.Spec.ActiveDeadlineSeconds == nil {
		return nil
	}
	from := r.pod.CreationTimestamp.Time
	if r.pod.Status.StartTime != nil {
		from = r.pod.Status.StartTime.Time
	}
	deadline := time.Duration(*r.pod.Spec.ActiveDeadlineSeconds)*time.Second + overdue
	if from.IsZero() || time.Since(from) < deadline {
		return nil
	}
	return errors.Join(&OverduePodError{Pod: r.name, Node: r.pod.Spec.NodeName}, r.remove(ctx, nil))
}

// hasStarted reports whether anything of the pod may have run.
func hasStarted(pod *v1.Pod) bool {
	if pod.Status.Phase != v1.PodPending && pod.Status.Phase != "" {
		return true
	}
	for _, statuses := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range statuses {
			if s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil {
				return true
			}
		}
	}
	return false
}

// abandon removes a pod that has not started, since ctx has ended.
func (r *podRun) abandon(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
	defer cancel()
	for !hasStarted(r.pod) && r.pod.DeletionTimestamp == nil {
		// Only in the state that was looked at: it may start just now.
		err := r.remove(ctx, &r.pod.ResourceVersion)
		if !apierrors.IsConflict(err) {
			return err
		}
		pod, err := r.get(ctx)
		if err != nil || pod == nil || pod.UID != r.pod.UID {
			return err
		}
		r.pod = pod
	}
	return nil
}

// remove deletes the pod that was waited for; another one of its name stays. A
// version, if given, must be the pod's. One that is gone is none to delete.
func (r *podRun) remove(ctx context.Context, version *string) error {
	return r.delete(ctx, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.pod.UID, ResourceVersion: version}})
}

// removeAtOnce does not wait for the pod's node.
func (r *podRun) removeAtOnce(ctx context.Context) error {
	return r.delete(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &r.pod.UID}})
}

func (r *podRun) delete(ctx context.Context, options metav1.DeleteOptions) error {
	err := r.clientset.CoreV1().Pods(r.name.Namespace).Delete(ctx, r.name.Name, options)
	if err == nil || missingKind(err) == "pods" || apierrors.IsConflict(err) && options.Preconditions.ResourceVersion == nil {
		return nil // what is there now, if anything, is another pod
	}
	return r.failed("delete", err)
}
