package hostpath

import (
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/sharedirs"
	"github.com/podvol/podvol/volume/internal/wipe"
)

// Causes of errors about the directories of volumes, for [errors.Is]. Existing
// files are kept.
const (
	ErrOccupied     = sharedirs.ErrOccupied     // something is at the volume's path that is not its own
	ErrRetained     = sharedirs.ErrRetained     // it is the volume's former directory, which was retained; matches ErrOccupied
	ErrNested       = sharedirs.ErrNested       // it would lie in another volume, or around one
	ErrReplaced     = sharedirs.ErrReplaced     // another directory is in place of the volume's
	ErrNoBook       = sharedirs.ErrNoBook       // no volume was ever made there: its disk may not be mounted
	ErrLost         = sharedirs.ErrLost         // the volume's directory is gone
	ErrTrashed      = sharedirs.ErrTrashed      // the deletion of the directory was begun
	ErrDamaged      = sharedirs.ErrDamaged      // the directory's mark cannot be read
	ErrExposed      = sharedirs.ErrExposed      // others can write in .podvol, so it is not trusted
	ErrForeign      = sharedirs.ErrForeign      // .podvol belongs to another user, so it is not trusted
	ErrMode         = sharedirs.ErrMode         // the file system does not keep the mode that the class asks for
	ErrBusy         = sharedirs.ErrBusy         // others changed the same directories at every try; wraps EAGAIN
	ErrHoldsVolumes = sharedirs.ErrHoldsVolumes // the volume is not emptied, since volumes are provisioned in it

	// ErrNoBase: the directory in which volumes are made cannot be opened.
	ErrNoBase volume.Cause = "the directory for provisioned volumes cannot be opened"
	// ErrForgotten: a claim of this name had a volume before, whose directory is still
	// there and whose PersistentVolume is not. The claim gets no other.
	ErrForgotten volume.Cause = "the claim's former volume is there without a record"
	// ErrOtherNode: the volume is to be made, deleted or emptied on another node.
	ErrOtherNode volume.Cause = "the volume is another node's"
	// ErrWrongType: a hostPath is not what its type asks for. The error matches
	// [io/fs.ErrNotExist] where nothing is there.
	ErrWrongType volume.Cause = "the path is not of the type that the volume asks for"
)

type (
	// DirectoryError is what Provision and Delete say of one directory, in a
	// *[volume.Error].
	DirectoryError = sharedirs.Error
	// VolumeOwner is the volume and the claim that a directory was made for.
	VolumeOwner = sharedirs.Owner
)

// What a recycler's error may match.
var (
	// ErrNoLonger says that an emptying ended in its middle because the host's
	// [volume.ReleaseVerifier] does not let the volume be emptied any more. Its
	// reason is wrapped beside it.
	ErrNoLonger = wipe.ErrNoLonger
	// ErrOtherFileSystem says that the archive is on another file system than the
	// volume, or reached through another mount, so that nothing can be moved
	// there.
	ErrOtherFileSystem = wipe.ErrOtherFileSystem
)
