package sharedirs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/volume"
)

// The causes. Existing files are left as they are.
const (
	// ErrOccupied: something is at a volume's path that is not its own.
	ErrOccupied volume.Cause = "the path is not this volume's"
	// ErrRetained, which matches ErrOccupied: it was this volume's, whose deletion
	// has left it there.
	ErrRetained volume.Cause = "the directory was retained when its volume was deleted"
	// ErrNested: a volume would lie in another volume, or around one.
	ErrNested volume.Cause = "the volume would lie in another volume, or around one"
	// ErrReplaced: another directory is where a volume's was made.
	ErrReplaced volume.Cause = "another directory is in place of the volume's"
	// ErrNoBook: a volume was made in a base in which none was ever made. It may be
	// the directory in which the disk is not mounted.
	ErrNoBook volume.Cause = "no volume was ever made there"
	// ErrLost: the directory is gone, although the bookkeeping is there.
	ErrLost volume.Cause = "the volume's directory is gone"
	// ErrTrashed: the deletion of a volume's directory was begun. The rest is in the
	// trash, where only another [Remove] that deletes touches it.
	ErrTrashed volume.Cause = "the deletion of the volume's directory was begun"
	// ErrDamaged: a mark cannot be used.
	ErrDamaged volume.Cause = "the mark of the volume's directory cannot be used"
	// ErrExposed: the bookkeeping could be written by others, and is not trusted.
	ErrExposed volume.Cause = "others could write in the bookkeeping"
	// ErrForeign: the bookkeeping belongs to another user than what this node makes
	// there, and is not trusted.
	ErrForeign volume.Cause = "the bookkeeping belongs to another user"
	// ErrMode: a directory did not get the mode that was asked for.
	ErrMode volume.Cause = "the file system does not keep the mode"
	// ErrBusy: others changed the same directories at every try. The error wraps
	// EAGAIN.
	ErrBusy volume.Cause = "others change the same directories"
	// ErrHoldsVolumes: a released volume is, or holds, a base, and is not emptied:
	// that would delete volumes that were retained or archived, and the marks of all.
	ErrHoldsVolumes volume.Cause = "volumes are provisioned in the volume"
)

// Error is a directory that could not be made, found or deleted: why, whose it is,
// and what to do.
type Error struct {
	// Cause is why; nil: a call to the file system failed. errors.Is finds it.
	Cause error
	// Op is the call that failed, where Cause is nil.
	Op string
	// Path is the path that it is about, as it was reached.
	Path string
	// Other is the other path of ErrNested, the base of ErrNoBook, the mark of
	// ErrDamaged, and the place in the trash of ErrTrashed.
	Other string
	// Owner is the volume whose directory it is; empty: none of podvol's, or several.
	Owner Owner
	// Reason says more about Cause.
	Reason string
	// Err is the error behind it, in general a [unix.Errno]; nil: there is none.
	Err error
	// On is where the base lies.
	On Medium

	deleting bool   // a volume was to be deleted there, and not made
	ours     uint32 // the owner of this node's new files
}

// failed is a failed call to the base's file system.
func failed(op, path string, err error) error {
	if err == nil {
		return nil
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		err = errno // its wrappers say the same again
	}
	return &Error{Op: op, Path: path, Err: err}
}

func (e *Error) Error() string {
	text := e.what()
	if advice := e.Advice(); advice != "" {
		text += "; " + advice
	}
	return text
}

// Is makes errors.Is find Cause.
func (e *Error) Is(target error) bool {
	return target == e.Cause || e.Cause == ErrRetained && target == ErrOccupied
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// what describes the error.
func (e *Error) what() string {
	switch e.Cause {
	case ErrOccupied:
		return e.whatOccupied()
	case ErrRetained:
		return fmt.Sprintf("%s was made for %s, but it was retained when this volume was deleted, and belongs to none since", e.Path, e.Owner)
	case ErrNested:
		switch {
		case e.deleting:
			return fmt.Sprintf("the PersistentVolume leads to %s, in which other volumes lie, and which is kept", e.Path)
		case e.Owner == (Owner{}):
			return fmt.Sprintf("%s cannot be a volume: other volumes lie in it", e.Path)
		}
		return fmt.Sprintf("%s would lie in %s, which belongs to %s", e.Path, e.Other, e.Owner)
	case ErrReplaced:
		return fmt.Sprintf("%s is not the directory that was made for %s: it was replaced, or %s; it is kept", e.Path, e.Owner, e.On.otherInodes())
	case ErrNoBook:
		return fmt.Sprintf("%s has no directory .podvol, so %q of %s was made elsewhere", e.Other, e.Path, e.Owner)
	case ErrLost:
		return fmt.Sprintf("the directory %s of %s is gone", e.Path, e.Owner)
	case ErrTrashed:
		if e.Err == nil {
			return fmt.Sprintf("the deletion of %s, which belongs to %s, was begun; the rest of it is in %s", e.Path, e.Owner, e.Other)
		}
		return fmt.Sprintf("%s of %s is to be kept, but its deletion was begun before; the rest of it is in %s, and cannot be moved back: %v", e.Path, e.Owner, e.Other, e.Err)
	case ErrDamaged:
		return fmt.Sprintf("the mark %s of %q cannot be used: %s; the directory is kept", e.Other, e.Path, e.Reason)
	case ErrExposed, ErrForeign:
		return fmt.Sprintf("%s %s, so it is not trusted", e.Path, e.Reason)
	case ErrMode:
		return fmt.Sprintf("%s %s: the file system does not keep it", e.Path, e.Reason)
	case ErrBusy:
		return fmt.Sprintf("others make and delete volumes at %s at the same time", e.Path)
	}
	return fmt.Sprintf("%s %s: %v", e.Op, e.Path, e.Err)
}

func (e *Error) whatOccupied() string {
	switch podvols := e.Owner != (Owner{}); {
	case e.deleting && podvols:
		return fmt.Sprintf("the PersistentVolume leads to %s, which belongs to %s (%s) and is kept", e.Path, e.Owner, e.Reason)
	case e.deleting:
		return fmt.Sprintf("the PersistentVolume leads to %s, which is not podvol's (%s) and is kept", e.Path, e.Reason)
	case podvols:
		return fmt.Sprintf("%s belongs to %s (%s)", e.Path, e.Owner, e.Reason)
	}
	return fmt.Sprintf("%s is not podvol's and is neither used nor deleted: %s", e.Path, e.Reason)
}

// Advice says what to do, or is empty where nothing useful can be said.
func (e *Error) Advice() string {
	switch e.Cause {
	case nil:
		return e.On.advise(e.Err)
	case ErrOccupied:
		switch {
		case e.deleting:
			return e.On.lookAtPath()
		case e.Owner != (Owner{}):
			return "use a path template that gives each volume its own"
		}
		return "move it away, or use another path template"
	case ErrRetained:
		return "make a PersistentVolume for it by hand to use it again, or move it away, and try again"
	case ErrNested:
		if e.deleting {
			return e.On.lookAtPath()
		}
		return "use a path template without directories that are volumes too"
	case ErrReplaced:
		return "look at it, move it away, and try again"
	case ErrNoBook:
		return e.On.lookForDisk() + ". If it was emptied for good, make an empty .podvol there (mkdir -m 0700), and try again"
	case ErrLost:
		return e.On.lookForDisk() + ". If it is gone for good, its data is too: delete the volume and its claim, and make a new claim"
	case ErrTrashed:
		if e.Err == nil {
			return "delete the volume again to finish that, or move it back to keep it, and try again"
		}
		return "move it to where it shall be kept, and try again"
	case ErrDamaged:
		return "restore the mark, or move it and the directory away"
	case ErrExposed:
		return "see who made it, then chmod 0700 or move it away"
	case ErrForeign:
		return fmt.Sprintf("see who made it, then move it away, or, if it is podvol's and %s, chown -R it to %d", e.On.otherUser(), e.ours)
	case ErrMode:
		return "ask for another (" + e.On.modeParameter() + ")"
	case ErrBusy:
		return "try again"
	}
	return ""
}

// lookAtPath is the advice where a PersistentVolume leads to a directory that is
// not its own.
func (m Medium) lookAtPath() string {
	field := "nfs.path"
	if m == Disk {
		field = "hostPath.path"
	}
	return "check its " + field + ", and delete the PersistentVolume by hand if it should go"
}

// otherInodes is why a directory can be another one although it was not touched.
func (m Medium) otherInodes() string {
	if m == Disk {
		return "the disk was restored"
	}
	return "the server has changed its inodes"
}

func (m Medium) lookForDisk() string {
	if m == Disk {
		return "look whether its disk is mounted on this node"
	}
	return "look whether the disk of the share is mounted on the server"
}

// otherUser is why the bookkeeping can be another user's.
func (m Medium) otherUser() string {
	if m == Disk {
		return "it runs as another user than before"
	}
	return "the server squashes users otherwise than before"
}

func (m Medium) modeParameter() string {
	if m == Disk {
		return "mode"
	}
	return "mountPermissions"
}

// advise says what to do about an error of the kernel's.
func (m Medium) advise(err error) string {
	for _, a := range m.ofErrno() {
		if errors.Is(err, a.err) {
			return a.text
		}
	}
	return ""
}

// where is where the files of a base are changed by hand.
func (m Medium) where() string {
	if m == Disk {
		return ""
	}
	return " on the server"
}

// advised is what to do about an error of the kernel's.
type advised struct {
	err  unix.Errno
	text string
}

func (m Medium) ofErrno() []advised {
	if m == Disk {
		return []advised{
			{unix.EROFS, "the file system is read-only: mount it read-write, or look in the kernel's log for why it became so"},
			{unix.ENOSPC, "the file system is full or out of inodes: free some, then it goes on by itself"},
			{unix.EDQUOT, "the quota of the user that podvol runs as is used up: raise it or free space"},
			{unix.EACCES, "the user that podvol runs as may not do that: give him the directory, or run podvol as root"},
			{unix.EPERM, "the user of podvol may not do that, or the directory is immutable (lsattr): give the user the directory, or run podvol as root"},
			{unix.ENAMETOOLONG, "the file system's names are shorter than the path template makes them"},
			{unix.EMLINK, "the file system allows no more directories there: use a path template with directories of its own, such as ${pvc.metadata.namespace}/${pvc.metadata.name}"},
		}
	}
	return []advised{
		{unix.EROFS, "the share is read-only: export it rw (exports(5)), or use a share that is"},
		{unix.ENOSPC, "the share is full or out of inodes: free some, then it goes on by itself"},
		{unix.EDQUOT, "the quota of whom the server takes this node's root for is used up: raise it or free space"},
		{unix.EACCES, "the server does not let this node's root do that; with root_squash it is nobody there: " +
			"export with no_root_squash, or give the share's directory to the anonymous user (anonuid) and leave no volume of others in it"},
		{unix.EPERM, "the server does not let this node's root do that: export with no_root_squash, or give the share's directory to the anonymous user (anonuid)"},
		{unix.ESTALE, "the server no longer has the directory: it was removed or replaced there; try again"},
		{unix.ENAMETOOLONG, "the server's names are shorter than the path template makes them"},
		{unix.EMLINK, "the server allows no more directories there: use a path template with directories of its own, such as ${pvc.metadata.namespace}/${pvc.metadata.name}"},
	}
}
