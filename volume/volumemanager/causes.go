package volumemanager

import (
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/selinux"
	"github.com/podvol/podvol/volume/volumemanager/internal/blockmap"
)

// Causes of a volume's errors, for [errors.Is]; each is that of a *[volume.Failure].
const (
	// ErrNodeAffinity: the PersistentVolume belongs to other nodes.
	ErrNodeAffinity volume.Cause = "the volume belongs to other nodes"
	// ErrReplaced: a pod's volume is mounted from another source than is now asked for.
	// Its containers may be using it, so it is left alone.
	ErrReplaced volume.Cause = "the volume is mounted from another source"
	// ErrDeviceReplaced: a pod's device is not the volume's any more.
	ErrDeviceReplaced = blockmap.ErrReplaced
	// ErrUsedByOtherPod: another pod on this node has the PersistentVolume, whose only
	// access mode is ReadWriteOncePod. It is set up once that pod's is torn down.
	ErrUsedByOtherPod volume.Cause = "another pod has the volume"
	// ErrSELinuxConflict: a file system is mounted with one SELinux label, and is asked
	// for with another: by containers of one pod, or for another pod on this node. In
	// the latter case it is mounted when those pods have gone.
	ErrSELinuxConflict = selinux.ErrConflict
)
