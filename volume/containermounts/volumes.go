package containermounts

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/mountrecord"
)

// Volumes is the role that knows which volumes of which pods are mounted: the volume
// manager's. All calls may be concurrent.
type Volumes interface {
	// DeclaredPod returns a pod as it was declared last. It is not changed afterwards,
	// by either side.
	DeclaredPod(podUID types.UID) (*v1.Pod, error)
	// MountedVolume returns the record of a declared pod's volume, by its name in the
	// pod. A volume that containers cannot use now is an error, which says what it
	// waits for. The record is not changed afterwards.
	MountedVolume(podUID types.UID, name string) (*mountrecord.Record, error)
	// KeepRoot keeps the root directory locked until done is called, also for a call
	// that hangs. It fails after the manager has stopped.
	KeepRoot() (done func(), err error)
	// Admit fails where the recorded volume is being torn down, or was. Else it keeps
	// the pod's directories until done is called, and returns a context that does not
	// end with the given one, but when the manager stops.
	Admit(ctx context.Context, r *mountrecord.Record) (kept context.Context, done func(), err error)
}
