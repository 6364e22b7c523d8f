package volumemanager

import (
	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume/volumemanager/internal/statusrows"
	"github.com/podvol/podvol/volume/volumemanager/volumestatus"
)

type (
	// VolumeStatus is the state of one volume of one pod.
	VolumeStatus = volumestatus.Status
	// VolumeState is how far a volume is.
	VolumeState = volumestatus.State
	// PodVolumes are the volumes of one pod, in the pod's order.
	PodVolumes = volumestatus.PodVolumes
	// PodError collects what went wrong with the volumes of one pod.
	PodError = volumestatus.PodError
	// PendingError says what a volume was waiting for when a caller's patience ended.
	PendingError = volumestatus.PendingError
	// RecoveryError says that a caller's patience ended before Run knew what volumes there are.
	RecoveryError = volumestatus.RecoveryError
	// NotMountedError says what a volume waits for that a container needs.
	NotMountedError = volumestatus.NotMountedError
	// AttachmentError is of a volume that waits for a report, or was detached while it is mounted.
	AttachmentError = volumestatus.AttachmentError
)

// The states, which volumestatus describes.
const (
	StatePending   = volumestatus.StatePending
	StateMounted   = volumestatus.StateMounted
	StateFailed    = volumestatus.StateFailed
	StateDetached  = volumestatus.StateDetached
	StateUnused    = volumestatus.StateUnused
	StateUnmounted = volumestatus.StateUnmounted
)

// Inspect returns the volumes below a root directory without a manager, ordered by pod and
// volume, from records, directories and mount table.
//
//   - It neither takes the root's lock nor touches a volume's file system.
//   - The error joins failures to read, such as of damaged records (*[DamagedError] and
//     *[UnreadableRecordError]); the rows are valid beside it, but there may be more.
//   - A missing root has no volumes; one that [CheckRoot] refuses is not looked into.
func Inspect(rootDir string, table mount.Table) ([]VolumeStatus, error) {
	return statusrows.Inspect(rootDir, table)
}
