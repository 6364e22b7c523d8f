//go:build linux

package lazyunmount

import (
	"fmt"
	"time"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
)

// Error says that a volume's mount had to be detached lazily:
//
//   - The mount is out of sight, but its file system may still be in use.
//   - Data that was not yet written may be written later, or be lost.
//   - The volume is not torn down before the file system is gone. Its directory
//     was left.
type Error struct {
	// Mount is the mount that was detached last.
	Mount mount.Entry
	// Superblocks are the file systems of all detached mounts.
	Superblocks []table.Superblock
}

func (e *Error) Error() string {
	what := e.Mount.Source
	if e.Mount.FSType != "" {
		what = e.Mount.FSType + " " + what
	}
	return fmt.Sprintf("%s did not unmount from %s and was detached; its file system may still be in use, and what was not yet written may be lost; the volume stays until the file system is gone: end the processes and pods that use it, bring its server back, or restart the machine",
		what, e.Mount.Target)
}

// InUse reports whether one of the file systems may still be alive. It is true if
// this is not known.
func (e *Error) InUse() bool {
	for _, s := range e.Superblocks {
		if alive, known := s.Alive(); alive || !known {
			return true
		}
	}
	return false
}

// Detachment returns the stored form of the error, for a volume that was detached
// at the given time.
func (e *Error) Detachment(at time.Time) *Detachment {
	d := &Detachment{At: at, Source: e.Mount.Source, FSType: e.Mount.FSType, Target: e.Mount.Target}
	for _, s := range e.Superblocks {
		d.Superblocks = append(d.Superblocks, s.Key())
	}
	return d
}

// Recall returns the error that was stored. The mounter is the volume's mounter,
// or one like it.
func (d *Detachment) Recall(m mount.Interface) *Error {
	e := &Error{Mount: mount.Entry{Source: d.Source, FSType: d.FSType, Target: d.Target}}
	for _, key := range d.Superblocks {
		e.Superblocks = append(e.Superblocks, table.SuperblockByKey(m, key))
	}
	return e
}
