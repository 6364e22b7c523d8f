package persistentvolume

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// EventRecorder takes events about claims and volumes; client-go's recorders
// are some. It must not block. It is called from several goroutines at once.
// The object is only read.
type EventRecorder interface {
	Event(object runtime.Object, eventType, reason, message string)
}

// ReasonStorageMissing is the reason of a Normal event about a PersistentVolume that
// is deleted although there was no storage to delete, where its plugin can tell
// (reclaim.StorageFinder).
const ReasonStorageMissing = "VolumeStorageMissing"

// Reasons of events, as in Kubernetes' controllers.
const (
	reasonFailedBinding         = "FailedBinding"
	reasonVolumeMismatch        = "VolumeMismatch"
	reasonClaimLost             = "ClaimLost"
	reasonClaimMisbound         = "ClaimMisbound"
	reasonFailedRecycle         = "VolumeFailedRecycle"
	reasonRecycled              = "VolumeRecycled"
	reasonRecyclerPod           = "RecyclerPod"
	reasonFailedDelete          = "VolumeFailedDelete"
	reasonDelete                = "VolumeDelete"
	reasonUnknownPolicy         = "VolumeUnknownReclaimPolicy"
	reasonInvalidVolume         = "InvalidVolume" // podvol's own: the API server lets none in
	reasonExternalProvisioning  = "ExternalProvisioning"
	reasonProvisioning          = "Provisioning"
	reasonProvisioningFailed    = "ProvisioningFailed"
	reasonCleanupFailed         = "ProvisioningCleanupFailed"
	reasonProvisioningSucceeded = "ProvisioningSucceeded"
	reasonWaitForConsumer       = "WaitForFirstConsumer"
)

// event tells of the state of an object.
type event struct{ eventType, reason, message, details string }

// volumeOf names the state of a pod's volume.
func volumeOf(pod *v1.Pod, volumeName string) types.UID {
	return pod.UID + "/volume/" + types.UID(volumeName)
}
