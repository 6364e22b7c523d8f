package journal

import (
	"errors"
	"fmt"
)

// ErrReplaced says that the open file is not the one at the journal's path any more,
// so that the next process to open the journal does not find the change. Earlier
// changes may be lost too, unless the file is put back.
var ErrReplaced = errors.New("the file or its directory was removed or replaced after it was opened; restore it, or restart")

// Error is a failed operation on the journal's file; the change that it was
// for may be found or not when the journal is next opened. The next change
// first tries to put the file right. Err is os.ErrClosed after Close.
type Error struct {
	Op, Path string
	Err      error
}

func (e *Error) Error() string {
	return fmt.Sprintf("cannot %s the journal %s: %v", e.Op, e.Path, e.Err)
}

// Unwrap returns what the operating system said.
func (e *Error) Unwrap() error { return e.Err }

// DamagedError is a run of lines that cannot be read although they were written
// to their end, or a journal that has lost what it held. A lost line may have
// said that something is used, so nothing may be deleted by the rest while the
// damage is there. A person ends that: by removing Kept, or moving it elsewhere,
// once it is known what the lines were about.
type DamagedError struct {
	Path string
	// Line, counted from 1, to Last are the damaged lines; 0: the missing ones are
	// not known.
	Line, Last int
	// Kept is the copy of the damaged file, an empty one if that was missing; empty
	// where none was made yet, which [Open] does.
	Kept string
	Err  error
}

// Lines is how many lines are damaged; 0: that is not known.
func (e *DamagedError) Lines() int {
	if e.Line == 0 {
		return 0
	}
	return e.Last - e.Line + 1
}

func (e *DamagedError) Error() string {
	text := fmt.Sprintf("the journal %s is damaged: %v", e.Path, e.Err)
	switch {
	case e.Last > e.Line:
		text = fmt.Sprintf("lines %d to %d of the journal %s cannot be read: %v", e.Line, e.Last, e.Path, e.Err)
	case e.Line > 0:
		text = fmt.Sprintf("line %d of the journal %s cannot be read: %v", e.Line, e.Path, e.Err)
	}
	switch {
	case e.Kept == "":
		return text
	case errors.Is(e.Err, errGone):
		return text + "; " + e.Kept + " says so"
	}
	return text + "; the whole file is kept as " + e.Kept
}

// Unwrap returns the cause.
func (e *DamagedError) Unwrap() error { return e.Err }
