package rootdir

import (
	"errors"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume/mountrecord"
)

var (
	// ErrDirectoryGone says that a volume that is no mount of its own was set up
	// once, and its directory below the root directory was removed since.
	ErrDirectoryGone = errors.New("its directory is gone; set the pod up again, which makes a new one, or tear it down")
	// ErrOutcomeUnknown says that a set-up was begun and never confirmed.
	ErrOutcomeUnknown = errors.New("its set-up was begun and not finished; set the pod up again, or tear it down")
	// ErrNoRecord says that a volume's directory has no record.
	ErrNoRecord = errors.New("its directory has no record: podvol did not make it, or the record was lost; it is left alone")
)

// ReasonOf says why a recorded volume may not be usable, or nil.
func ReasonOf(r *mountrecord.Record, mounted Mounts, gone func(*mountrecord.Record) bool) error {
	switch c := r.Confirmed; {
	case r.Detached != nil:
		return r.Detached.Recall(mounted.Mounter)
	case c == nil:
		return ErrOutcomeUnknown
	case c.MountPoint && !mounted.Has(r.Path), c.Device != nil && !mounted.Has(c.Device.Bind):
		return mountrecord.ErrNotMountedAnymore
	case gone(r):
		return ErrDirectoryGone
	}
	return nil
}

// GoneFrom returns a function that tells whether a recorded volume's place below the
// root directory is in no list of those that are there. Without a list, none is gone.
func GoneFrom(rootDir string, dirs []Key, failed error) func(*mountrecord.Record) bool {
	there := make(map[Key]bool, len(dirs))
	for _, key := range dirs {
		there[key] = true
	}
	return func(r *mountrecord.Record) bool {
		return failed == nil && !there[KeyOf(r)] && pathin.Strictly(PodsDir(rootDir), r.Path)
	}
}

// NoneGone is for callers that do not look.
func NoneGone(*mountrecord.Record) bool { return false }
