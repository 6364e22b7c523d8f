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
