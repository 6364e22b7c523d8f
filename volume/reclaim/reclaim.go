// Package reclaim has what emptying and deleting a released volume may end with besides
// success: a dry run, a part that is left, and storage that was gone before.
package reclaim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/podvol/podvol/volume"
)

// ErrDryRun says that nothing was deleted because the call was a dry run. The
// volume is not empty and must not be given to another claim.
var ErrDryRun = errors.New("dry run: nothing was deleted")

// DryRunError describes the data that a dry run did not delete. It matches
// [ErrDryRun].
type DryRunError struct {
	// Source is the place of the data, for people: "10.0.0.1:/export".
	Source string
	// Entries is the number of files, links and directories. Bytes is their
	// space.
	Entries, Bytes int64
	// First are some of the names directly in the volume.
	First []string
	// Mounts is the number of mount points. A deletion would stop there.
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

// list returns the first names, and a sign if there are more.
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
// its end. The rest is untouched. Another attempt goes on with it.
type IncompleteError struct {
	// Done is the number of removed entries.
	Done int64
	Err  error
}

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("stopped after %s: %v; the rest is still there, and another try goes on with it", counted(e.Done, "entry", "entries"), e.Err)
}

// Unwrap returns the error that stopped it.
func (e *IncompleteError) Unwrap() error { return e.Err }

// StorageFinder is implemented by deleters that know whether the storage existed
// before Delete. Absent: it existed.
type StorageFinder interface {
	volume.Deleter
	// Found reports whether the storage existed. It is called once Delete has
	// returned nil.
	Found() bool
}

// FoundStorage reports whether the storage that d deleted existed before; see
// [StorageFinder].
func FoundStorage(d volume.Deleter) bool {
	f, ok := d.(StorageFinder)
	return !ok || f.Found()
}
