package provisioned

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// OccupiedError says that a volume cannot have a path, since something is
// there that is not its own. That was not touched.
type OccupiedError struct {
	// Path is the path as it was reached, Reason what is there.
	Path, Reason string
	// Owner is the volume whose it is; empty: no volume of podvol's.
	Owner Owner
	// Deleting: a volume was to be deleted there, and not made.
	Deleting bool
	// Retained: it was Owner's, whose deletion has left it there.
	Retained bool
	On       Medium
}

func (e *OccupiedError) Error() string {
	if e.Retained {
		return fmt.Sprintf("%s was made for %s, but %s: make a PersistentVolume for it by hand to use it again, or move it away, and try again", e.Path, e.Owner, e.Reason)
	}
	if e.Deleting {
		whose := "is not podvol's"
		if e.Owner != (Owner{}) {
			whose = "belongs to " + e.Owner.String()
		}
		return fmt.Sprintf("the PersistentVolume leads to %s, which %s (%s) and is kept; %s", e.Path, whose, e.Reason, e.On.lookAtPath())
	}
	if e.Owner != (Owner{}) {
		return fmt.Sprintf("%s belongs to %s (%s); use a path template that gives each volume its own", e.Path, e.Owner, e.Reason)
	}
	return fmt.Sprintf("%s is not podvol's and is neither used nor deleted: %s; move it away, or use another path template", e.Path, e.Reason)
}

// NestedError says that a volume would lie in another volume, or around one.
type NestedError struct {
	// Path is the volume's path, Other that of the other one.
	Path, Other string
	// Owner is the other volume; empty: there may be several.
	Owner Owner
	// Deleting: a volume was to be deleted there, and not made.
	Deleting bool
	On       Medium
}

func (e *NestedError) Error() string {
	if e.Deleting {
		return fmt.Sprintf("the PersistentVolume leads to %s, in which other volumes lie, and which is kept; %s", e.Path, e.On.lookAtPath())
	}
	if e.Owner == (Owner{}) {
		return fmt.Sprintf("%s cannot be a volume: other volumes lie in it; use a path template without directories that are volumes too", e.Path)
	}
	return fmt.Sprintf("%s would lie in %s, which belongs to %s; use a path template without directories that are volumes too", e.Path, e.Other, e.Owner)
}

// ReplacedError says that a volume's path leads to another directory than the
// one that was made for it. Neither is touched.
type ReplacedError struct {
	Path  string
	Owner Owner
	On    Medium
}

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("%s is not the directory that was made for %s: somebody has replaced it, or %s; "+
		"it is kept. Look at it, move it away, and try again", e.Path, e.Owner, e.On.otherInodes())
}

// NoBookError says that a volume is to be removed from a base in which no volume
// was ever made: it may be the directory in which the disk is not mounted.
// Nothing was touched.
type NoBookError struct {
	// Base is the base, Path the volume's path below it.
	Base, Path string
	Owner      Owner
	On         Medium
}

func (e *NoBookError) Error() string {
	return fmt.Sprintf("%s has no directory .podvol, so %q of %s was made elsewhere: %s. "+
		"If it was emptied for good, make an empty .podvol there (mkdir -m 0700), and try again", e.Base, e.Path, e.Owner, e.On.lookForDisk())
}

// LostError says that a volume's directory is gone, although the bookkeeping is
// there.
type LostError struct {
	Path  string
	Owner Owner
	On    Medium
}

func (e *LostError) Error() string {
	return fmt.Sprintf("the directory %s of %s is gone: %s. If it is gone for good, what was in it is too: delete the volume and its claim, and make a new claim", e.Path, e.Owner, e.On.lookForDisk())
}

// DamagedError says that a mark cannot be used. Whatever is at Path is kept.
type DamagedError struct {
	// Path is the directory's path below the base, Mark the mark's own.
	Path, Mark, Reason string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the mark %s of %q cannot be used: %s; whatever is there is kept. Restore the mark, or move it and the directory away", e.Mark, e.Path, e.Reason)
}

// ExposedError says that the bookkeeping could be written by others, and so is
// not trusted.
type ExposedError struct {
	Path string
	Mode uint32
}

func (e *ExposedError) Error() string {
	return fmt.Sprintf("%s has the mode %#o: others could write in it, so it is not trusted; see who made it, then chmod 0700 or move it away", e.Path, e.Mode)
}

// ForeignError says that the bookkeeping is somebody else's, and so is not
// trusted.
type ForeignError struct {
	Path string
	// Owner is the user whose it is, Ours the one whose what this node makes
	// there is.
	Owner, Ours uint32
	On          Medium
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s belongs to user %d, while what this node makes there belongs to user %d, so it is not trusted; see who made it, "+
		"then move it away, or, if it is podvol's and %[4]s, chown -R it to %[3]d", e.Path, e.Owner, e.Ours, e.On.otherUser())
}

// ModeError says that a directory did not get the mode that was asked for.
type ModeError struct {
	Path       string
	Got, Asked uint32
	On         Medium
}

func (e *ModeError) Error() string {
	return fmt.Sprintf("%s has the mode %#o instead of %#o: the file system does not keep it; ask for another (%s)", e.Path, e.Got, e.Asked, e.On.modeParameter())
}

// BusyError says that others changed the same directories at every try. It
// matches EAGAIN.
type BusyError struct{ Path string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("others make and delete volumes at %s at the same time; try again", e.Path)
}

// Unwrap returns EAGAIN.
func (e *BusyError) Unwrap() error { return unix.EAGAIN }

// Error is a failed step on the base's file system.
type Error struct {
	// Op is the step, Path what it concerned.
	Op, Path string
	// Err is the reason, in general a [unix.Errno].
	Err error
	On  Medium
}

func failed(op, path string, err error) error {
	if err == nil {
		return nil
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		err = errno // what wraps it says the same again
	}
	return &Error{Op: op, Path: path, Err: err}
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s %s: %v", e.Op, e.Path, e.Err)
	if advice := e.Advice(); advice != "" {
		text += "; " + advice
	}
	return text
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// Advice says what to do, or is empty where nothing useful can be said.
func (e *Error) Advice() string {
	for _, a := range e.On.advice() {
		if errors.Is(e.Err, a.err) {
			return a.text
		}
	}
	return ""
}
