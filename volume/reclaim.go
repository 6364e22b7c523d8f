package volume

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrDryRun says that nothing was deleted because only a dry run was asked for:
// the volume is not empty and must not be given to another claim.
var ErrDryRun = errors.New("dry run: nothing was deleted")

// DryRunError says what would have been deleted. It matches [ErrDryRun].
type DryRunError struct {
	// Source is where the data is, as people read it: "10.0.0.1:/export".
	Source string
	// Entries is how many files, links and directories there are; Bytes the
	// space they take.
	Entries, Bytes int64
	// First are some of the names directly in the volume.
	First []string
	// Mounts is how many mount points there are, at which a deletion would stop.
	Mounts int64
	// Do says how to delete for real.
	Do string
}

func (e *DryRunError) Error() string {
	text := fmt.Sprintf("%v: %s has %s of %s", ErrDryRun, e.Source, counted(e.Entries, "entry", "entries"), counted(e.Bytes, "byte", "bytes"))
	if len(e.First) > 0 {
		text += " (" + e.list() + ")"
	}
	if e.Mounts > 0 {
		text += fmt.Sprintf(" and %s, at which it would stop", counted(e.Mounts, "mount point", "mount points"))
	}
	if e.Do == "" {
		return text
	}
	return text + "; " + e.Do
}

// list has the first names, and a sign that there is more than these.
func (e *DryRunError) list() string {
	var names []string
	for _, name := range e.First {
		names = append(names, strconv.Quote(name))
	}
	if e.Entries > int64(len(names)) {
		names = append(names, "…")
	}
	return strings.Join(names, ", ")
}

func counted(n int64, one, many string) string {
	if n == 1 {
		many = one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Unwrap returns [ErrDryRun].
func (e *DryRunError) Unwrap() error { return ErrDryRun }

// IncompleteError says that the emptying or deletion of a volume stopped before
// its end. What is left is untouched; another try goes on.
type IncompleteError struct {
	// Done is how many entries are gone.
	Done int64
	Err  error
}

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("stopped after %s: %v; the rest is still there, and another try goes on with it", counted(e.Done, "entry", "entries"), e.Err)
}

// Unwrap returns what stopped it.
func (e *IncompleteError) Unwrap() error { return e.Err }
