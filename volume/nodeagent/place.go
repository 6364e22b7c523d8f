package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/podstate"
	"github.com/podvol/podvol/volume/volumemanager"
)

// place has the node mount a pod once all its claims are bound for it, as a
// cluster's scheduler does. Otherwise the pod waits, and its rows say for which
// claims.
func (k *keeper) place(ctx context.Context, pod *v1.Pod) error {
	if k.replaced.underWay[pod.UID] {
		k.declared.withdraw(pod.UID)
		return nil
	}
	if k.placed[pod.UID] == pod {
		if k.declared.has(pod.UID) {
			return nil // just so
		}
		return k.declared.declare(pod)
	}
	why := k.claims.Place(ctx, pod)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if why != nil {
		k.declared.withdraw(pod.UID)
		k.wait(ctx, waitingPod{pod: pod, err: why, mounted: len(k.node.ExplainPod(pod.UID)) > 0})
		return nil
	}
	k.waiting.remove(pod.UID)
	k.placed[pod.UID] = pod
	return k.declared.declare(pod)
}

// placeWaiting retries the pods that wait for one of the changed objects.
func (k *keeper) placeWaiting(ctx context.Context, changed map[volume.ObjectRef]bool) error {
	for _, w := range k.waiting.waitingFor(k.claims.concerned(ctx, changed)) {
		if err := k.place(ctx, w.pod); err != nil {
			return err
		}
	}
	return nil
}

// wait records why a pod is not placed, and reports it if that is new.
func (k *keeper) wait(ctx context.Context, w waitingPod) {
	before, waited := k.waiting.get(w.pod.UID)
	w.since = time.Now()
	if waited {
		w.since = before.since
	}
	k.waiting.put(w, k.claims.awaited(ctx, w))
	if !w.mounted {
		for _, row := range w.rows() {
			if !errors.Is(row.Err, persistentvolume.ErrNotSynced) { // which is soon over
				k.show(row)
			}
		}
		return
	}
	// It has rows for its mounted volumes.
	if !waited || before.err.Error() != w.err.Error() {
		k.say(fmt.Sprintf("pod %s/%s keeps the volumes that it has, and is not mounted as it is wanted now: %v", w.pod.Namespace, w.pod.Name, w.err))
	}
}

// waitingPod is a pod that is not placed.
type waitingPod struct {
	pod     *v1.Pod
	err     error
	since   time.Time
	mounted bool // another version of it is, or may be
}

// rows are the pod's volumes: nothing of it is mounted before it has its claims.
func (w waitingPod) rows() (rows []volumemanager.VolumeStatus) {
	for i := range w.pod.Spec.Volumes {
		v := &w.pod.Spec.Volumes[i]
		claim, isClaim := claimbinding.ClaimOf(w.pod, v)
		row := volumemanager.VolumeStatus{
			Pod: types.NamespacedName{Namespace: w.pod.Namespace, Name: w.pod.Name}, PodUID: w.pod.UID, NodeName: types.NodeName(w.pod.Spec.NodeName),
			Volume: v.Name, Claim: claim, State: volumemanager.StatePending, Since: w.since, Wanted: true,
		}
		switch {
		case !podstate.UsesVolume(w.pod, v.Name):
			row.State = volumemanager.StateUnused
		case isClaim:
			row.Err = volume.NothingDone(w.reason(claim))
		default:
			row.Err = volume.NothingDone(&claimsFirstError{w.err})
		}
		rows = append(rows, row)
	}
	return rows
}

// claimsFirstError is of a volume that is no claim itself.
type claimsFirstError struct{ err error }

func (e *claimsFirstError) Error() string {
	names := "its claims"
	if bind, ok := errors.AsType[*embedded.BindError](e.err); ok && len(bind.Unbound) > 0 {
		names = "claim " + bind.Unbound[0].Claim.String()
		if more := len(bind.Unbound) - 1; more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
	}
	return "not set up before the pod has " + names
}

// Unwrap returns why the pod has not got them.
func (e *claimsFirstError) Unwrap() error { return e.err }

// reason is the reason why the pod waits for one claim.
func (w waitingPod) reason(claim types.NamespacedName) error {
	bind, ok := errors.AsType[*embedded.BindError](w.err)
	if !ok {
		return w.err
	}
	for _, unbound := range bind.Unbound {
		if unbound.Claim == claim {
			return unbound.Err
		}
	}
	return w.err // another claim's
}
