package volumemanager

import (
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podspec"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/selinux"
	"github.com/podvol/podvol/volume/volumemanager/internal/blockmap"
	"github.com/podvol/podvol/volume/volumemanager/internal/lifecycle"
	"github.com/podvol/podvol/volume/volumemanager/internal/oncepod"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
	"github.com/podvol/podvol/volume/volumemanager/volumestatus"
)

// Causes of a volume's errors, for [errors.Is]; each is a *[volume.Failure]'s.
const (
	// ErrNodeAffinity: the PersistentVolume belongs to other nodes.
	ErrNodeAffinity = podspec.ErrNodeAffinity
	// ErrReplaced: a pod's volume is mounted from another source than is now asked for.
	// Its containers may be using it, so it is left alone.
	ErrReplaced = volumestatus.ErrReplaced
	// ErrDeviceReplaced: a pod's device is not the volume's any more.
	ErrDeviceReplaced = blockmap.ErrReplaced
	// ErrUsedByOtherPod: another pod on this node has the PersistentVolume, whose only
	// access mode is ReadWriteOncePod. It is set up once that pod's is torn down.
	ErrUsedByOtherPod = oncepod.ErrUsed
	// ErrSELinuxConflict: a file system is mounted with one SELinux label, and is asked
	// for with another: by containers of one pod, or for another pod on this node. In
	// the latter case it is mounted when those pods have gone.
	ErrSELinuxConflict = selinux.ErrConflict
)

var (
	// ErrStopped says that the manager's Run has ended.
	ErrStopped = lifecycle.ErrStopped
	// ErrNotRun says that Run was not called, so that nothing is mounted.
	ErrNotRun = lifecycle.ErrNotRun
	// ErrAlreadyRun says that Run was called before; a manager runs once.
	ErrAlreadyRun = lifecycle.ErrAlreadyRun
)

// ErrRootBusy says that another process owns the root directory.
var ErrRootBusy = rootdir.ErrBusy

type (
	// RootError says that the root directory RootDir cannot be used, and why: Err.
	RootError = rootdir.Error

	// DamagedError says that records of volumes were lost: some mounts, and their pods, may
	// be unknown. It is found again after each restart, until a person has seen to it; its
	// method Advice says how.
	//
	//   - Nothing is deleted, emptied or detached that a lost record may have named: a volume
	//     that others may use keeps its device, [Manager.VolumesInUse] leaves out nothing,
	//     and [Repair] removes nothing that no record explains.
	//   - A program that deletes or empties storage asks [Manager.Damaged] or [Inspect] first.
	//   - Pods are set up and torn down as always.
	//   - Files are the kept copies of damaged records. Their removal ends this. Without any,
	//     the first manager that owns the root directory makes one.
	//   - Lines counts their damaged lines; 0: unknown. Errs are the *journal.DamagedErrors.
	DamagedError = rootdir.DamagedError

	// UnreadableRecordError is a record that this podvol cannot read. The volume
	// it stands for, if it is mounted, is left alone, and the record is kept. Volume is
	// the volume's path below pods/, without "volumes", and Path its directory; empty
	// where the record has not even the key of a volume. Err matches
	// mountrecord.ErrDamaged or mountrecord.ErrNewer.
	UnreadableRecordError = rootdir.UnreadableRecordError
)

// CheckRoot checks that a root directory, with podvol's own files below it, can be relied
// on: every directory on the way belongs to root or to this process's user, no other user
// can change it, and no link, special file or other user's file has the name of one of
// podvol's. If not, the error is a *[RootError]. A missing root is checked as far as it
// exists, and is no error.
//
// It changes nothing, takes no lock, and may be called concurrently. All functions here call
// it before they work below a root; so must programs with own files in [StateDir].
func CheckRoot(rootDir string) error { return rootdir.Check(rootDir) }

// StateDir returns the directory below a root that is podvol's own: for files of
// the manager and of programs around it that must outlive them. It has the mode
// 0700 and is not locked by itself; see the package comment.
func StateDir(rootDir string) string { return rootdir.StateDir(rootDir) }

// Damaged returns a *[DamagedError] while records of the root directory are known
// to be lost: what Explain returns need not be all then. Before the manager has
// recovered it returns the damage found until then. It reads a directory, and
// returns any error of that too, which counts as damage.
func (m *Manager) Damaged() error { return rootdir.Damaged(m.host.RootDir) }

var (
	// ErrDirectoryGone says that a volume that is no mount of its own was set up
	// once, and its directory below the root directory was removed since.
	ErrDirectoryGone = rootdir.ErrDirectoryGone
	// ErrVanished says that a volume's mount is gone although the manager has not
	// unmounted it.
	ErrVanished = volumestatus.ErrVanished
	// ErrOutcomeUnknown says that a set-up was begun and never confirmed.
	ErrOutcomeUnknown = rootdir.ErrOutcomeUnknown
	// ErrNoRecord says that a volume's directory has no record.
	ErrNoRecord = rootdir.ErrNoRecord
)

// wrap makes sure that an error names the volume as the pod does, and the pod;
// nil stays nil.
func wrap(r *mountrecord.Record, volumeName, op string, err error) error {
	if err == nil {
		return nil
	}
	return (&volume.Error{Op: op, Plugin: r.Plugin, Volume: volumeName, Pod: r.Pod, PodUID: r.PodUID}).About(err)
}
