package journal

import "fmt"

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

// DamagedError is a run of lines that cannot be read although they were
// written to their end.
type DamagedError struct {
	Path string
	// Line, counted from 1, to Last are the lines that are damaged.
	Line, Last int
	// Kept is where the damaged file was copied to; empty after Read.
	Kept string
	Err  error
}

func (e *DamagedError) Error() string {
	where := fmt.Sprintf("line %d", e.Line)
	if e.Last > e.Line {
		where = fmt.Sprintf("lines %d to %d", e.Line, e.Last)
	}
	text := fmt.Sprintf("%s of the journal %s cannot be read: %v", where, e.Path, e.Err)
	if e.Kept != "" {
		text += "; the whole file is kept as " + e.Kept
	}
	return text
}

// Unwrap returns what is wrong with the line.
func (e *DamagedError) Unwrap() error { return e.Err }
