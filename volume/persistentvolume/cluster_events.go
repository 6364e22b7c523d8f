package persistentvolume

import (
	"sync"

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
	reasonExternalExpanding     = "ExternalExpanding"
	reasonExternalModifying     = "ExternalModifying" // podvol's own
	reasonModified              = "VolumeModifySuccessful"
	reasonModifyFailed          = "VolumeModifyFailed"
	reasonResizeFailed          = "VolumeResizeFailed"
	reasonNodeResize            = "FileSystemResizeRequired"
	reasonResized               = "VolumeResizeSuccessful"
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
	reasonPluginSlow            = "VolumePluginSlow" // our own
	reasonWaitForConsumer       = "WaitForFirstConsumer"
)

// event tells of the state of an object.
type event struct{ eventType, reason, message, details string }

// eventLog passes events on. An event about a state is sent once as long as the state
// lasts, however often its object is synced.
type eventLog struct {
	sink EventRecorder // nil: there is no listener

	mu   sync.Mutex
	told map[types.UID]string
}

// happened tells of something that took place just now.
func (l *eventLog) happened(object runtime.Object, eventType, reason, message string) {
	if l.sink != nil {
		l.sink.Event(object, eventType, reason, message)
	}
}

// is tells of the state that an object is in. Details that others change all
// the time make no other state.
func (l *eventLog) is(object stateful, eventType, reason, message, details string) {
	l.isOf(object.GetUID(), object, eventType, reason, message, details)
}

// isOf is [eventLog.is] for a state of a name of its own.
func (l *eventLog) isOf(name types.UID, object stateful, eventType, reason, message, details string) {
	l.mu.Lock()
	state := reason + "\x00" + message
	known := l.told[name] == state
	l.told[name] = state
	l.mu.Unlock()
	if !known {
		if details != "" {
			message += ": " + details
		}
		l.happened(object, eventType, reason, message)
	}
}

// isSlow tells, once, of a plugin that does not answer, if it does not.
func (l *eventLog) isSlow(object stateful, slow error) {
	if slow != nil {
		l.isOf(slownessOf(object), object, v1.EventTypeWarning, reasonPluginSlow, slow.Error(), "")
	}
}

// slownessOf and volumeOf name states of an object beside the one that it is in.
func slownessOf(object stateful) types.UID { return object.GetUID() + "/slow" }

func volumeOf(pod *v1.Pod, volumeName string) types.UID {
	return pod.UID + "/volume/" + types.UID(volumeName)
}

// stateful is an object that events may be about.
type stateful interface {
	runtime.Object
	GetUID() types.UID
}

// settled says that an object is in no state to tell of.
func (l *eventLog) settled(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.told, uid)
}

var _ stateful = (*v1.PersistentVolume)(nil)
