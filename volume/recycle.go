package volume

import (
	"context"

	v1 "k8s.io/api/core/v1"
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
	//   - A pod of this name with another label recyclerpod.Label is another pod.
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
	// A pod that did not succeed is an error, best recyclerpod.ErrFailed of
	// recyclerpod.Result.
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
