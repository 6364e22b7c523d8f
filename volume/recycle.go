package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodRunner runs pods to their end, such as the pod that empties a volume for
// recycling. In a cluster it is a client of the API.
type PodRunner interface {
	// RunPod creates the pod, waits until it has ended and removes it. It reports
	// the pod's progress, above all its events, to record. It only reads the
	// argument pod.
	//
	// It is idempotent by the pod's namespace and name:
	//
	//   - The pod may exist already, because ctx ended an earlier wait. Then
	//     RunPod waits for that pod and removes it.
	//   - The success of such a pod counts only if the runner can tell that it
	//     made the pod itself. Every user who may make pods there can use the
	//     name and the label. Without proof RunPod runs the pod once more.
	//   - A pod of this name with another label [RecyclerLabel] is another pod.
	//     Its success says nothing. That is an error.
	//
	// It calls mayRun because the data may belong to another claim meanwhile:
	//
	//   - It does so right before it creates the pod or begins to wait for an
	//     existing one, and then every few seconds until the pod has ended.
	//   - If mayRun fails, RunPod removes an existing pod without a grace period,
	//     however far it is, and returns the error.
	//
	// When ctx ends, RunPod removes a pod that has not started, so that it does
	// not start later. It leaves a running pod for the next call.
	//
	// A pod that did not succeed is an error, best [ErrPodFailed] of
	// [PodResult].
	RunPod(ctx context.Context, pod *v1.Pod, mayRun func(ctx context.Context) error, record RecycleEventRecorder) error
}

// ReleaseVerifier decides whether the data of a PersistentVolume may be
// destroyed. It is called before the deletion, again right before the first file,
// and about every second while the deletion goes on. So it should answer from
// memory.
type ReleaseVerifier interface {
	// VerifyReleased returns nil only if the data may be destroyed:
	//
	//   - The stored PersistentVolume is this one, by UID and source.
	//   - It is Released by the claim that its claimRef names by UID, or it is
	//     Failed because it could not be reclaimed before.
	//   - That claim is gone, is another one, or has another volume.
	//   - No other claim, PersistentVolume or inline volume uses this data.
	//
	// If one of these is not known, that is an error. VerifyReleased only reads
	// the argument.
	VerifyReleased(ctx context.Context, pv *v1.PersistentVolume) error
}

const (
	// RecyclerLabel marks the pod that empties a PersistentVolume. Its value is
	// the volume's [ReleaseID]. So it stands for this release and no other.
	RecyclerLabel = "podvol.io/recycler-of"
	// RecyclerAnnotation is the name of that PersistentVolume.
	RecyclerAnnotation = "podvol.io/recycled-volume"
)

// ReleaseID names one release of a PersistentVolume. It is made of the UIDs of
// the volume and of the claim that has left it. It differs for every later claim.
// It is empty if one of the two UIDs is not known.
func ReleaseID(pv *v1.PersistentVolume) string {
	if pv == nil || pv.UID == "" || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(string(pv.UID) + "/" + string(pv.Spec.ClaimRef.UID)))
	return hex.EncodeToString(sum[:10])
}

// PodResult reports whether a pod has ended, and how: err is nil if the pod
// succeeded, else [ErrPodFailed].
func PodResult(pod *v1.Pod) (ended bool, err error) {
	switch pod.Status.Phase {
	case v1.PodSucceeded:
		return true, nil
	case v1.PodFailed:
		return true, PodFailed(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, pod.Status.Reason, podMessage(pod))
	}
	return false, nil
}

// podMessage is the message of a failed pod, or else the message of its first
// failed container.
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

// ErrPodFailed is the cause of a pod's end without success.
const ErrPodFailed Cause = "the pod has failed"

// PodFailed returns the [Failure] of a pod that ended and did not succeed. The pod's
// reason, such as "DeadlineExceeded", and the message of the pod or of one of its
// containers may be empty.
func PodFailed(pod types.NamespacedName, reason, message string) error {
	text := fmt.Sprintf("pod %q failed", pod)
	if reason != "" {
		text += " (" + reason + ")"
	}
	if message == "" {
		text += " without a message"
	} else {
		text += ": " + message
	}
	return &Failure{Cause: ErrPodFailed, Subject: pod.String(), What: text}
}
