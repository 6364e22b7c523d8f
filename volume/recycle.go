package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodRunner runs pods to their end, as recycling needs one that empties a
// volume. Who runs podvol in a cluster gives it a client of the API.
type PodRunner interface {
	// RunPod creates the pod, waits until it has ended and removes it. What
	// happens to it meanwhile, its events above all, goes to record. It is
	// idempotent by the pod's namespace and name: a pod that is there, because
	// an earlier wait ended with ctx, is waited for and removed. Its success counts
	// only if it can be told that the runner has made it, since name and label may be
	// anybody's who may make pods there; else the pod is run once more. The pod is
	// only read.
	//
	// It asks mayRun right before it creates the pod or begins to wait for one
	// that is there, and then every few seconds until the pod has ended: what the
	// pod deletes may belong to somebody meanwhile. If that is an error, a pod
	// that is there is removed without a grace period, however far it is, and
	// the error returned. When ctx ends, a pod that has not started is removed,
	// so that it does not start once nobody asks any more; one that runs is left
	// for the next call.
	//
	// A pod that did not succeed is an error, best the *[PodFailedError] that
	// [PodResult] makes of it. A pod of this name with another label
	// [RecyclerLabel] is not this one, and its success says nothing: that is an
	// error too.
	RunPod(ctx context.Context, pod *v1.Pod, mayRun func(ctx context.Context) error, record RecycleEventRecorder) error
}

// ReleaseVerifier decides whether the data of a PersistentVolume may be
// destroyed. It is asked before, and again right before, anything is deleted,
// and about every second while that goes on, so it should answer from memory.
type ReleaseVerifier interface {
	// VerifyReleased returns nil only if the data may be destroyed: the
	// PersistentVolume that is stored is this very one, by UID and source; it
	// is Released by the claim that its claimRef names by UID, or Failed since it
	// could not be reclaimed before; that claim is gone, another one, or has
	// another volume; and nobody else uses this data, by whatever claim,
	// PersistentVolume or inline volume. What cannot be told is an error. The
	// argument is only read.
	VerifyReleased(ctx context.Context, pv *v1.PersistentVolume) error
}

const (
	// RecyclerLabel marks the pod that empties a PersistentVolume. Its value is
	// [ReleaseID] of the volume, so that it means this release and no other.
	RecyclerLabel = "podvol.io/recycler-of"
	// RecyclerAnnotation is the name of that PersistentVolume.
	RecyclerAnnotation = "podvol.io/recycled-volume"
)

// ReleaseID names one release of a PersistentVolume: it is made of the UIDs of
// the volume and of the claim that has left it, and differs for every later
// claim. It is empty where one of the two is not known.
func ReleaseID(pv *v1.PersistentVolume) string {
	if pv == nil || pv.UID == "" || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(string(pv.UID) + "/" + string(pv.Spec.ClaimRef.UID)))
	return hex.EncodeToString(sum[:10])
}

// PodResult says whether a pod has ended, and how: nil for one that succeeded,
// else a *[PodFailedError].
func PodResult(pod *v1.Pod) (ended bool, err error) {
	switch pod.Status.Phase {
	case v1.PodSucceeded:
		return true, nil
	case v1.PodFailed:
		return true, &PodFailedError{
			Pod:    types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
			Reason: pod.Status.Reason, Message: podMessage(pod),
		}
	}
	return false, nil
}

// podMessage is what a failed pod says of itself, or else what the first of its
// containers that failed says.
func podMessage(pod *v1.Pod) string {
	if pod.Status.Message != "" {
		return pod.Status.Message
	}
	for _, statuses := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range statuses {
			if ended := s.State.Terminated; ended != nil && ended.ExitCode != 0 {
				text := fmt.Sprintf("container %q ended with exit code %d", s.Name, ended.ExitCode)
				if ended.Message != "" {
					text += ": " + ended.Message
				}
				return text
			}
		}
	}
	return ""
}

// PodFailedError says that a pod ended and did not succeed.
type PodFailedError struct {
	Pod types.NamespacedName
	// Reason is the pod's, such as "DeadlineExceeded"; may be empty.
	Reason string
	// Message is what the pod or one of its containers says; may be empty.
	Message string
}

func (e *PodFailedError) Error() string {
	text := fmt.Sprintf("pod %q failed", e.Pod)
	if e.Reason != "" {
		text += " (" + e.Reason + ")"
	}
	if e.Message != "" {
		return text + ": " + e.Message
	}
	return text + " without a message"
}
