package atomicdir

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/podvol/podvol/volume/fileset"
)

// ErrBusy is the reason of an [Error] while another Publisher, of this process or
// another one, publishes into the directory. Nothing was changed; try again
// later.
var ErrBusy = errors.New("another publication of this directory is under way; try again")

// Error is a failed publication. It never shows contents.
type Error struct {
	// Op is the step that failed.
	Op string
	// Dir is the directory published into, Name the entry of it, if any.
	Dir, Name string
	// Published says that the new version is in place, and a step after that
	// failed: visible names may be missing or outdated versions left.
	Published bool
	// Err is the reason; the cause of the context's end where that ended it.
	Err error
}

func (e *Error) Error() string {
	text := fmt.Sprintf("publish files in %s: %s", e.Dir, e.Op)
	if e.Name != "" {
		text += fmt.Sprintf(" %q", e.Name)
	}
	text += ": " + e.Err.Error()
	if errors.Is(e.Err, ErrBusy) {
		return text // the other one may change the files
	}
	if e.Published {
		text += " (the new version is in place; publishing it again completes it)"
	} else {
		text += " (the files that were there before are unchanged)"
	}
	if advice := e.advice(); advice != "" {
		text += "; " + advice
	}
	return text
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// ForeignEntryError says that something that was not published here has the
// name of a file to be published, or of a link of the layout. It is left alone
// and nothing was changed. Of links, only NAME -> ..data/NAME is published here.
type ForeignEntryError struct {
	// Dir is the directory, Name the entry in the way.
	Dir, Name string
}

func (e *ForeignEntryError) Error() string {
	advice := "move it away or publish under another name"
	if strings.HasPrefix(e.Name, fileset.Reserved) {
		advice = "that name is the publisher's own; move it away"
	}
	return fmt.Sprintf("publish files in %s: %s exists and was not published; %s", e.Dir, filepath.Join(e.Dir, e.Name), advice)
}
