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

	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/recyclerpod"
)

const (
	// askAgain is how often it is asked whether a pod may still run.
	askAgain = 3 * time.Second
	// overdue is how long after its deadline a pod may be without an end.
	overdue = 2 * time.Minute
	// cleanUpTime bounds the removal of a pod for which there is no ctx any more.
	cleanUpTime = 10 * time.Second
	// firstAbandonPause is the first pause of those that double, between tries to
	// remove a pod that something is against.
	firstAbandonPause = 100 * time.Millisecond
)

// PodRunnerConfig is the configuration of [PodRunner]; its zero value works.
type PodRunnerConfig struct {
	// Logger takes faults without consequence for a pod: events that could not be
	// watched, for example; nil: none is logged.
	Logger *slog.Logger
}

// PodRunner is a [volume.PodRunner] over the API. It is safe for concurrent use,
// also by several processes: those that run one pod do so one after the other.
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

// Causes of the errors of [PodRunner.RunPod]. The subject of the [volume.Failure] is the
// pod.
const (
	// ErrForeignPod: there is another pod of the name that was to run.
	ErrForeignPod volume.Cause = "there is another pod of this name"
	// ErrOverduePod: a pod has not ended in time, and what it does is not known.
	ErrOverduePod volume.Cause = "the pod has not ended in time"
)

func foreignPod(pod types.NamespacedName, label string) error {
	return &volume.Failure{
		Cause: ErrForeignPod, Subject: pod.String(), Next: "delete it if it is not needed",
		What: fmt.Sprintf("there is a pod %q that has the label %s=%q and so was made for something else; it is left alone", pod, recyclerpod.Label, label),
	}
}

// overduePod is the error for a pod that its node has started or not. Node is empty
// if it is to run nowhere yet.
func overduePod(pod types.NamespacedName, node string, started bool) error {
	failure := &volume.Failure{Cause: ErrOverduePod, Subject: pod.String()}
	switch {
	case !started && node == "":
		failure.What = fmt.Sprintf("pod %q was not started in time, and is removed", pod)
		failure.Next = "see its events, and whether a node fits it"
	case !started:
		failure.What = fmt.Sprintf("pod %q was not started in time, and its deletion is requested", pod)
		failure.Next = fmt.Sprintf("see its events, and whether node %q runs", node)
	default:
		failure.What = fmt.Sprintf("pod %q is past its deadline and has not ended; what it does on node %q is not known", pod, node)
		failure.Next = "see whether that node runs, and delete its Node if it never will again"
	}
	return failure
}

// RunPod implements [volume.PodRunner].
//
//   - Only a pod that this very call has made gives the result, known by the UID that the
//     API has given it: any user who may make pods there could choose its name and label.
//   - A leftover that has the pod's [recyclerpod.Label] is waited for and removed once it
//     has ended. Then the pod is made. Another pod of that name is [ErrForeignPod]; a pod
//     without that label is a *[volume.InvalidSpecError].
//   - A pod that another client deletes before it has started is made again; later it is a
//     [recyclerpod.ErrFailed].
//   - One that has not ended two minutes after its activeDeadlineSeconds is [ErrOverduePod]:
//     its node is lost, and it is left there with its deletion requested. The time counts by
//     this process's clock, from when its start is seen, or else from its creation or from
//     when it was found.
//   - A pod whose object is gone has ended, as everywhere in Kubernetes: a user who deletes
//     one by force, or the Node of a running machine, vouches for its containers. While they
//     go on another pod may succeed, and its volume be given to a new claim.
func (r *PodRunner) RunPod(ctx context.Context, pod *v1.Pod, mayRun func(ctx context.Context) error, record volume.RecycleEventRecorder) error {
	if pod.Labels[recyclerpod.Label] == "" {
		return volume.Invalid("metadata.labels", "a pod that is run needs the label %s", recyclerpod.Label)
	}
	run := &podRun{PodRunner: r, want: pod, mayRun: mayRun, record: record, name: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}}
	if run.record == nil {
		run.record = func(string, string) {}
	}
	err := run.do(ctx)
	if ctx.Err() != nil && (run.pod != nil || run.unsure) {
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
	// ours says that this call has made it.
	ours bool
	// unsure says that one may have been made though the API has not said so.
	unsure bool
	// since is when it was made or found, or was seen to have started.
	since time.Time
	// blind is why it cannot be watched, as last recorded; empty: it can.
	blind string
}

func (r *podRun) do(ctx context.Context) error {
	for {
		if err := r.find(ctx); err != nil {
			return err
		}
		ended, result, err := r.follow(ctx)
		switch {
		case err != nil:
			return err
		case ended:
			return errors.Join(result, r.remove(ctx, nil))
		case r.ours && hasStarted(r.pod):
			r.pod = nil
			return recyclerpod.Failed(r.name, "Deleted", "it was deleted before it had ended")
		}
		again := r.ours
		r.pod, r.blind = nil, ""
		if again { // not in a race with its deletion
			select {
			case <-time.After(askAgain):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// find takes up the pod to wait for: a new one, or one that is there.
func (r *podRun) find(ctx context.Context) error {
	for {
		if err := r.mayRun(ctx); err != nil {
			return r.refused(ctx, err)
		}
		// A copy, since encoding an object changes it for a moment.
		pod, err := r.clientset.CoreV1().Pods(r.name.Namespace).Create(ctx, r.want.DeepCopy(), metav1.CreateOptions{})
		if err == nil {
			r.pod, r.ours, r.since = pod, true, time.Now()
			return nil
		}
		// Hardly any other answer says that none was made: client-go asks again after some.
		r.unsure = !apierrors.IsAlreadyExists(err)
		pod, getErr := r.get(ctx)
		switch {
		case r.unsure && (getErr != nil || pod == nil):
			return r.failed("create", err)
		case getErr != nil:
			return getErr
		case pod == nil:
			continue
		}
		if err := r.check(pod); err != nil {
			return err
		}
		r.pod, r.ours, r.since = pod, false, time.Now()
		r.record(v1.EventTypeNormal, fmt.Sprintf("pod %q is there already; it is waited for and removed, and another one run then", r.name))
		return nil
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
	if pod.Labels[recyclerpod.Label] != r.want.Labels[recyclerpod.Label] {
		return foreignPod(r.name, pod.Labels[recyclerpod.Label])
	}
	return nil
}

func (r *podRun) failed(op string, err error) error {
	return fmt.Errorf("%s pod %q: %w", op, r.name, err)
}

// follow waits until the pod is gone, or has ended if it is ours.
func (r *podRun) follow(ctx context.Context) (ended bool, result, err error) {
	feed, stop := r.feed(r.pod)
	defer stop()
	ask := time.NewTicker(askAgain)
	defer ask.Stop()
	for removed := false; ; {
		if ended, result := recyclerpod.Result(r.pod); ended && r.ours {
			return true, result, nil
		} else if ended && !removed {
			if err := r.remove(ctx, nil); err != nil {
				return false, nil, err
			}
			removed = true
		}
		if gone, err := r.inTime(ctx); gone || err != nil {
			return false, nil, err
		}
		select {
		case seen := <-feed.pods:
			if gone := r.saw(seen.pod); gone || seen.gone {
				ended, result := recyclerpod.Result(r.pod)
				return ended && r.ours, result, nil
			}
			r.blind = ""
		case err := <-feed.failures:
			r.tellBlind(err)
		case e := <-feed.events:
			r.record(e.Type, fmt.Sprintf("pod %q: %s: %s", r.name, e.Reason, e.Message))
		case <-ask.C:
			if err := r.mayRun(ctx); err != nil {
				if ctx.Err() != nil {
					return false, nil, context.Cause(ctx)
				}
				return false, nil, errors.Join(err, r.removeAtOnce(ctx))
			}
			if r.blind == "" {
				continue
			}
			if gone, _ := r.look(ctx); gone { // what it cannot tell now it may the next time
				return false, nil, nil
			}
		case <-ctx.Done():
			return false, nil, context.Cause(ctx)
		}
	}
}

// saw takes over the object with the pod's name; gone: it is not this pod.
func (r *podRun) saw(pod *v1.Pod) (gone bool) {
	if pod == nil || pod.UID != r.pod.UID {
		return true
	}
	if r.pod.Status.StartTime == nil && pod.Status.StartTime != nil {
		r.since = time.Now()
	}
	r.pod = pod
	return false
}

// look asks for the state of the pod, for no longer than between two questions
// whether it may run.
func (r *podRun) look(ctx context.Context) (gone bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askAgain)
	defer cancel()
	pod, err := r.get(ctx)
	if err != nil {
		return false, err
	}
	return r.saw(pod), nil
}

// tellBlind records why the pod cannot be watched, once for each reason.
func (r *podRun) tellBlind(err error) {
	if reason := err.Error(); reason != r.blind {
		r.blind = reason
		r.record(v1.EventTypeWarning, fmt.Sprintf("pod %q cannot be watched, so it is asked for: %v", r.name, err))
	}
}

// inTime gives a pod up that is past its deadline, as the API has it now: the
// last seen version may be old.
func (r *podRun) inTime(ctx context.Context) (gone bool, err error) {
	if !r.isOverdue() {
		return false, nil
	}
	gone, err = r.look(ctx)
	switch ended, _ := recyclerpod.Result(r.pod); {
	case gone:
		return true, nil
	case err != nil && !apierrors.IsForbidden(err):
		return false, nil // an outage says nothing of the pod
	case err == nil && (ended && r.ours || !r.isOverdue()):
		return false, nil
	}
	lost := overduePod(r.name, r.pod.Spec.NodeName, r.pod.Status.StartTime != nil)
	return false, errors.Join(lost, err, r.remove(ctx, nil))
}

func (r *podRun) isOverdue() bool {
	seconds := r.want.Spec.ActiveDeadlineSeconds
	return seconds != nil && time.Since(r.since) >= time.Duration(*seconds)*time.Second+overdue
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

// abandon removes a pod that has not started, since ctx has ended. It looks for a
// pod that may have been made without an answer.
func (r *podRun) abandon(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
	defer cancel()
	if r.pod == nil {
		pod, err := r.get(ctx)
		if err != nil || pod == nil || r.check(pod) != nil {
			return err
		}
		r.pod = pod
	}
	pause := retry.Pause{First: firstAbandonPause, Last: cleanUpTime}
	for !hasStarted(r.pod) && r.pod.DeletionTimestamp == nil {
		// Only in the state that was read: it may start just now.
		err := r.remove(ctx, &r.pod.ResourceVersion)
		if !apierrors.IsConflict(err) {
			return err
		}
		pod, getErr := r.get(ctx)
		if getErr != nil || pod == nil || pod.UID != r.pod.UID {
			return getErr
		}
		if pod.ResourceVersion == r.pod.ResourceVersion && !pause.Wait(ctx) { // something else is against it
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
		return nil // if there is a pod now, it is another one
	}
	return r.failed("delete", err)
}
