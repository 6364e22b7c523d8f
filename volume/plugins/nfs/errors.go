package nfs

import (
	"fmt"
	"time"

	"github.com/podvol/podvol/mount"
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
	ErrNoBook       = sharedirs.ErrNoBook       // no volume was ever made there: the disk of the share may not be mounted on the server
	ErrLost         = sharedirs.ErrLost         // the volume's directory is gone
	ErrTrashed      = sharedirs.ErrTrashed      // the deletion of the directory was begun
	ErrDamaged      = sharedirs.ErrDamaged      // the directory's mark cannot be read
	ErrExposed      = sharedirs.ErrExposed      // others can write in .podvol, so it is not trusted
	ErrForeign      = sharedirs.ErrForeign      // .podvol belongs to another user, so it is not trusted
	ErrMode         = sharedirs.ErrMode         // the server does not keep the mode that the class asks for
	ErrBusy         = sharedirs.ErrBusy         // others changed the same directories at every try; wraps EAGAIN
	ErrHoldsVolumes = sharedirs.ErrHoldsVolumes // the volume is not emptied, since volumes are provisioned in it

	// ErrNotMade: the directory that a volume asks for could not be made. The error
	// also wraps the one of the mount, which missed it.
	ErrNotMade volume.Cause = "the directory could not be made"
	// ErrNotAllowed: a pod asks a server for an option or a directory that this
	// node's policy does not allow. Nothing was touched.
	ErrNotAllowed volume.Cause = "this node's NFS policy does not allow it"
	// ErrBadPolicy: a policy has a mistake; the subject of the [volume.Failure] is the
	// field.
	ErrBadPolicy volume.Cause = "the NFS policy has a mistake"
)

type (
	// ShareError is what Provision and Delete say of one directory on a share, in a
	// *[volume.Error].
	ShareError = sharedirs.Error
	// VolumeOwner is the volume and the claim that a directory was made for.
	VolumeOwner = sharedirs.Owner
)

// What an embedded recycler's error may match.
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

// retryError adds to an error when to try again.
type retryError struct {
	error
	at time.Time
}

func (e *retryError) Unwrap() error { return e.error }

// RetryAt implements [volume.RetryAtError].
func (e *retryError) RetryAt() time.Time { return e.at }

// ServerDownError says that a mount was not even tried, since those before it
// from the same server had no answer; see [BreakerConfig]. Nothing was done. It
// matches [mount.ErrTimedOut] and the cause of the last of those.
type ServerDownError struct {
	// Server is the server's name or address, and after it the mount options that
	// lead to another of its services, if there are any.
	Server string
	// Since is when the first of the mounts began that had no answer, Failures how
	// many there are.
	Since    time.Time
	Failures int
	// Next is when the server is tried again, by the first mount from it that is
	// wanted then. A time that has passed means that this is under way.
	Next time.Time
	// Last is what the last of the mounts failed with, and Cause its cause. It
	// names no volume, since it was another pod's.
	Last  error
	Cause mount.Cause
}

var _ volume.RetryAtError = (*ServerDownError)(nil)

// Error stays the same as long as the server is down for the same cause, however
// often it is tried, so that events and rows of output need not be repeated.
func (e *ServerDownError) Error() string {
	text := fmt.Sprintf("NFS server %s has not answered since %s, so this mount was not tried", e.Server, e.Since.UTC().Format(time.RFC3339))
	if e.Cause != "" && e.Cause != mount.ErrTimedOut {
		text += fmt.Sprintf(" (the last one that was: %v)", e.Cause)
	}
	return text + "\n" + e.Advice()
}

// Advice tells the node's owner what to do.
func (e *ServerDownError) Advice() string {
	return "See whether the server runs, and whether this node reaches it: its address, the route, and what a firewall does to its ports. " +
		"It is tried again by itself, and the volume is mounted once it answers."
}

// RetryAt is Next.
func (e *ServerDownError) RetryAt() time.Time { return e.Next }

// Unwrap returns [mount.ErrTimedOut], and Cause where that is another.
func (e *ServerDownError) Unwrap() []error {
	if e.Cause == "" || e.Cause == mount.ErrTimedOut {
		return []error{mount.ErrTimedOut}
	}
	return []error{mount.ErrTimedOut, e.Cause}
}
