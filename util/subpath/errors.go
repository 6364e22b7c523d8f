package subpath

import (
	"fmt"
	"io/fs"
	"syscall"
)

// InvalidPathError says that a path cannot be one beneath a volume's root,
// whatever is there. Nothing was opened.
type InvalidPathError struct {
	// Path is the path as it was given.
	Path string
	// Reason says why it is refused.
	Reason string
}

func (e *InvalidPathError) Error() string {
	return fmt.Sprintf("path %s in a volume is refused: it %s", quote(e.Path), e.Reason)
}

// EscapeError says that a path leads out of its volume. It matches EXDEV.
type EscapeError struct {
	// Volume is the name of the root, Path the path beneath it.
	Volume, Path string
	// Element is the link that leads out, as it was reached from the root,
	// and Target what it says. Both are empty where that had changed before it
	// could be opened.
	Element, Target string
}

func (e *EscapeError) Error() string {
	text := fmt.Sprintf("path %s leads out of the volume at %s", quote(e.Path), e.Volume)
	if e.Element != "" {
		text += fmt.Sprintf(": %s is a link to %s", quote(e.Element), quote(e.Target))
	}
	return text + "; only relative links that stay in the volume are followed"
}

// Unwrap returns EXDEV, which is what the kernel says.
func (e *EscapeError) Unwrap() error { return syscall.EXDEV }

// BusyError says that a missing directory could not be made until the context
// ended, since other processes changed the volume at every try. A later call may
// succeed. It matches EAGAIN and the cause of the context's end.
type BusyError struct {
	// Volume is the name of the root, Path the path beneath it.
	Volume, Path string
	// Err is the cause of the context's end.
	Err error
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("path %s in the volume at %s cannot be made: others changed it at each try (%v); try again", quote(e.Path), e.Volume, e.Err)
}

// Unwrap returns EAGAIN and Err.
func (e *BusyError) Unwrap() []error { return []error{syscall.EAGAIN, e.Err} }

// NotDirectoryError says that something on the way is no directory. It matches
// ENOTDIR.
type NotDirectoryError struct {
	// Volume is the name of the root, Path the path beneath it.
	Volume, Path string
	// Element is the file that is no directory, as reached from the root; empty
	// where that had changed before it could be opened.
	Element string
}

func (e *NotDirectoryError) Error() string {
	text := fmt.Sprintf("path %s in the volume at %s: ", quote(e.Path), e.Volume)
	if e.Element == "" {
		return text + "something on the way is not a directory"
	}
	return text + quote(e.Element) + " is not a directory"
}

// Unwrap returns ENOTDIR.
func (e *NotDirectoryError) Unwrap() error { return syscall.ENOTDIR }

// ReadOnlyError says that a path is missing and cannot be made, since its file
// system or mount is read-only. It matches EROFS and [fs.ErrNotExist].
type ReadOnlyError struct {
	// Volume is the name of the root, Path the path beneath it.
	Volume, Path string
}

func (e *ReadOnlyError) Error() string {
	return fmt.Sprintf("path %s does not exist in the volume at %s, and cannot be made since the volume is read-only; make it beforehand",
		quote(e.Path), e.Volume)
}

// Unwrap returns EROFS and fs.ErrNotExist.
func (e *ReadOnlyError) Unwrap() []error { return []error{syscall.EROFS, fs.ErrNotExist} }

// DanglingError says that a link on the way leads to nothing. Nothing is made
// at its end. It matches [fs.ErrNotExist].
type DanglingError struct {
	// Volume is the name of the root, Path the path beneath it.
	Volume, Path string
	// Element is the link, as an element of Path.
	Element string
}

func (e *DanglingError) Error() string {
	return fmt.Sprintf("path %s in the volume at %s: %s is a link to something that does not exist; remove it or make what it leads to",
		quote(e.Path), e.Volume, quote(e.Element))
}

// Unwrap returns fs.ErrNotExist.
func (e *DanglingError) Unwrap() error { return fs.ErrNotExist }

// KindError says that a mount point exists as the wrong kind of file.
type KindError struct {
	// Volume is the name of the root, Path the path beneath it.
	Volume, Path string
	// Dir says that a directory was wanted, and a file found; else it is the
	// other way around.
	Dir bool
}

func (e *KindError) Error() string {
	wanted, found := "a file", "a directory"
	if e.Dir {
		wanted, found = found, wanted
	}
	return fmt.Sprintf("mount point %s in the volume at %s must be %s and is %s", quote(e.Path), e.Volume, wanted, found)
}

// quote shows a name that a container may have chosen.
func quote(name string) string {
	const most = 255
	if len(name) > most {
		return fmt.Sprintf("%q…", name[:most])
	}
	return fmt.Sprintf("%q", name)
}
