package volume

import (
	"fmt"

	"github.com/podvol/podvol/mount"
)

// DetachedError says that a volume's mount had to be detached lazily: it is out
// of sight, but its file system may still be in use, and what was not yet
// written may be written later, or be lost. The volume is not torn down before
// the file system is gone; its directory was left. Which file system that was is
// not recorded: after a restart the volume counts as unmounted.
type DetachedError struct {
	// Mount is what was detached last.
	Mount mount.Entry
	// Superblocks are the file systems of all that was detached.
	Superblocks []mount.Superblock
}

func (e *DetachedError) Error() string {
	what := e.Mount.Source
	if e.Mount.FSType != "" {
		what = e.Mount.FSType + " " + what
	}
	return fmt.Sprintf("%s did not unmount from %s and was detached; its file system may still be in use, and what was not yet written may be lost; the volume stays until the file system is gone: end the processes that use it, or bring its server back",
		what, e.Mount.Target)
}

// InUse reports whether one of the file systems may still live. Where nobody
// can tell, it may.
func (e *DetachedError) InUse() bool {
	for _, s := range e.Superblocks {
		if alive, known := s.Alive(); alive || !known {
			return true
		}
	}
	return false
}
