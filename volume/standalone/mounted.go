package standalone

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/volumemanager"
)

// MountedBelow returns the volumes that are mounted below a root directory, by
// the node's records. If a record cannot be read, there may be more, and the
// error matches [embedded.ErrIncomplete].
func MountedBelow(rootDir string, mounter mount.Interface) ([]embedded.Mounted, error) {
	mounts := table.Of(mounter)
	rows, err := volumemanager.Inspect(rootDir, mounts)
	if _, fatal := errors.AsType[*volumemanager.RootError](err); fatal {
		return nil, err
	}
	return mountedRows(rows), incomplete(err)
}

// incomplete says that an error has hidden a volume that may be mounted.
func incomplete(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", embedded.ErrIncomplete, err)
}

func mountedRows(rows []volumemanager.VolumeStatus) []embedded.Mounted {
	all := make([]embedded.Mounted, 0, len(rows))
	for _, v := range rows {
		all = append(all, embedded.Mounted{Pod: v.Pod, PodUID: v.PodUID, Volume: VolumeName(v), Claim: v.Claim})
	}
	return all
}

// VolumeName is the name of the PersistentVolume that is mounted, or may be. A
// volume without a record is known by its directory alone, which has that name.
// It is empty for a volume of the pod's own.
func VolumeName(v volumemanager.VolumeStatus) string {
	if v.PersistentVolume == "" && v.Found {
		return filepath.Base(v.Path)
	}
	return v.PersistentVolume
}

// MountedFor returns the volumes that a node has mounted, or may have, for a pod,
// and of claims.
func MountedFor(node *volumemanager.Manager) MountedForFunc {
	return func(_ context.Context, pod types.UID, claims []types.NamespacedName) ([]embedded.Mounted, error) {
		rows := node.ExplainPod(pod)
		for _, claim := range claims {
			rows = append(rows, slices.DeleteFunc(node.ExplainClaim(claim), func(v volumemanager.VolumeStatus) bool { return v.PodUID == pod })...)
		}
		return mountedRows(rows), nil
	}
}

// MountedForFunc is the type of [embedded.Config]'s field.
type MountedForFunc = func(context.Context, types.UID, []types.NamespacedName) ([]embedded.Mounted, error)

// MountedOn returns the volumes that a node has mounted, or may have, for any
// pod.
func MountedOn(node *volumemanager.Manager) func(context.Context) ([]embedded.Mounted, error) {
	return func(context.Context) ([]embedded.Mounted, error) {
		return mountedRows(node.Explain()), incomplete(node.Damaged())
	}
}
