package rootdir

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/podvol/podvol/util/journal"
)

// DamagedError says that records of volumes were lost: mounts, and their pods,
// may be unknown. The manager's DamagedError says what follows.
type DamagedError struct {
	RootDir string
	// Files are the copies of damaged records that are kept, whose removal ends
	// this. None: the first manager that owns the root directory makes one.
	Files []string
	// Lines is how many lines of them are damaged; 0: that is not known.
	Lines int
	// Errs are the single *[journal.DamagedError]s.
	Errs []error
}

// newDamagedError joins the journal's errors; nil: nothing.
func newDamagedError(rootDir string, damage []error) *DamagedError {
	if len(damage) == 0 {
		return nil
	}
	e := &DamagedError{RootDir: rootDir, Errs: damage}
	for _, err := range damage {
		d, ok := errors.AsType[*journal.DamagedError](err)
		if !ok {
			continue
		}
		e.Lines += d.Lines()
		if d.Kept != "" && !slices.Contains(e.Files, d.Kept) {
			e.Files = append(e.Files, d.Kept)
		}
	}
	return e
}

func (e *DamagedError) Error() string {
	lines := make([]string, len(e.Errs))
	for i, err := range e.Errs {
		lines[i] = err.Error()
	}
	return fmt.Sprintf("records of volumes below %s are lost: %s. %s", e.RootDir, strings.Join(lines, "; "), e.Advice())
}

// Advice says what a person can do.
func (e *DamagedError) Advice() string {
	files := cmp.Or(strings.Join(e.Files, " and "), "the file that is kept beside the records from the next start on")
	return "Until a person has looked, nothing is deleted, emptied or detached that they may have named. Find out which volumes these were, from the file, the mount table and " +
		"what podvol status shows without a record; unmount them, set their pods up again, or have them adopted (Config.Adopt, podvol fsck --repair --adopt); then remove " + files + ", or move it elsewhere."
}

// Unwrap returns the errors of the damaged files.
func (e *DamagedError) Unwrap() []error { return e.Errs }

// Damaged returns a *[DamagedError] while records of a root directory are known
// to be lost. It reads a directory, and returns any error of that too.
func Damaged(rootDir string) error {
	damage, err := journal.KeptDamage(RecordsPath(rootDir))
	if err != nil {
		return &Error{rootDir, err}
	}
	if e := newDamagedError(rootDir, damage); e != nil {
		return e
	}
	return nil
}
