package journal

import "fmt"

// Error is a failed operation on the journal's file; the change that it was
// for may be found or not when the journal is next opened.
type Error struct {
	Op, Path string
	Err      error
}

func (e *Error) Error() string {
	return fmt.Sprintf("cannot %s the journal %s: %v", e.Op, e.Path, e.Err)
}

// Unwrap returns what the operating system said.
func (e *Error) Unwrap() error { return e.Err }

// BrokenError says that the journal takes no changes any more, because it was
// closed or because an earlier write or sync failed; open it again.
type BrokenError struct {
	Path string
	Err  error
}

func (e *BrokenError) Error() string {
	return fmt.Sprintf("the journal %s takes no more changes: %v", e.Path, e.Err)
}

// Unwrap returns the earlier failure, or os.ErrClosed.
func (e *BrokenError) Unwrap() error { return e.Err }

// DamagedError is a line that cannot be read, with whole lines after it.
type DamagedError struct {
	Path string
	Line int // counted from 1
	// Kept is where the damaged file was copied to; empty after Read.
	Kept string
	Err  error
}

func (e *DamagedError) Error() string {
	text := fmt.Sprintf("line %d of the journal %s is damaged: %v", e.Line, e.Path, e.Err)
	if e.Kept != "" {
		text += "; the whole file is kept as " + e.Kept
	}
	return text
}

// Unwrap returns what is wrong with the line.
func (e *DamagedError) Unwrap() error { return e.Err }
