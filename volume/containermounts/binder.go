package containermounts

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
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

// Binder finds out what containers must be shown of their pods' volumes, and binds
// the sub-paths among it. All methods are safe for concurrent use.
type Binder struct {
	host    *volume.Host
	plugins *volume.VolumePluginMgr
	volumes Volumes

	reaches blockingcall.Group[string] // looks at paths that may hang, and binds of the files found
	binding keylock.Map[SubPaths]
}

// New returns a binder for the volumes below the host's root directory. It does no
// I/O and keeps its arguments.
func New(host *volume.Host, plugins *volume.VolumePluginMgr, volumes Volumes) *Binder {
	return &Binder{host: host, plugins: plugins, volumes: volumes}
}

// Mounts returns what the runtime must show to one container, by name, of a
// declared pod: a mount for each of its volumeMounts, a device for each of its
// volumeDevices. Mounts come in the order in which they must be made, parent
// directories first. Init and ephemeral containers are containers like any other.
// The results are the caller's.
//
// Sub-paths are made where they are missing, and bound to a place of the pod's own,
// from where the runtime takes them. Mount points of volumes inside others are made
// as well. The package comment has more.
//
// Errors, of several volumes joined (errors.Join):
//
//   - [Volumes]' errors, for a single volume as a *volume.Error
//   - [ErrUnknownContainer]: no container has the name
//   - *volume.InvalidSpecError: a volumeMount or container that cannot be
//   - [ErrRuntimeLacks]: the runtime cannot make a mount recursively read-only, or
//     with its options
//   - [fs.ErrNotExist]: a mount point is missing in a read-only volume
//   - *subpath.EscapeError: a sub-path leads out of its volume
//   - *subpath.ReadOnlyError: a sub-path is missing and cannot be made
//
// A server that does not answer is waited for until ctx ends. The call may be
// concurrent, also for the same container, and repeated: a bind stays, unless the
// volume has something else there by now.
func (b *Binder) Mounts(ctx context.Context, podUID types.UID, containerName string, options Options) ([]Mount, []Device, error) {
	c, err := b.containerOf(podUID, containerName, options)
	if err != nil {
		return nil, nil, err
	}
	mounts, err := c.mounts(ctx)
	devices, deviceErr := c.devices()
	if err := errors.Join(err, deviceErr); err != nil {
		return nil, nil, err
	}
	return mounts, devices, nil
}
