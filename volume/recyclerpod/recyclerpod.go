// Package recyclerpod is about the pod that empties a released PersistentVolume: how it
// is marked, and how its end is told. Runners ([volume.PodRunner]) and plugins that
// recycle use it. Its functions do no I/O and change nothing.
package recyclerpod

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

const (
	// Label marks the pod that empties a PersistentVolume. Its value is
	// the volume's [ReleaseID]. So it stands for this release and no other.
	Label = "podvol.io/recycler-of"
	// Annotation is the name of that PersistentVolume.
	Annotation = "podvol.io/recycled-volume"
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

// Result reports whether a pod has ended, and how: err is nil if the pod
// succeeded, else [ErrFailed].
func Result(pod *v1.Pod) (ended bool, err error) {
	switch pod.Status.Phase {
	case v1.PodSucceeded:
		return true, nil
	case v1.PodFailed:
		return true, Failed(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, pod.Status.Reason, podMessage(pod))
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

// ErrFailed is the cause of a pod's end without success.
const ErrFailed volume.Cause = "the pod has failed"

// Failed returns the [volume.Failure] of a pod that ended and did not succeed. The pod's
// reason, such as "DeadlineExceeded", and the message of the pod or of one of its
// containers may be empty.
func Failed(pod types.NamespacedName, reason, message string) error {
	text := fmt.Sprintf("pod %q failed", pod)
	if reason != "" {
		text += " (" + reason + ")"
	}
	if message == "" {
		text += " without a message"
	} else {
		text += ": " + message
	}
	return &volume.Failure{Cause: ErrFailed, Subject: pod.String(), What: text}
}
