// Package causeword has one word for the cause of a volume's error, for other programs. The
// words do not change.
package causeword

import (
	"cmp"
	"context"
	"errors"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/podspec"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/oncepod"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// Cause is a word, and which errors it is for.
type Cause struct {
	Word string
	Is   func(error) bool
}

// Sentinel is for errors that match target.
func Sentinel(word string, target error) Cause {
	return Cause{word, func(err error) bool { return errors.Is(err, target) }}
}

// Typed is for errors that have an E in their chain.
func Typed[E error](word string) Cause {
	return Cause{word, func(err error) bool { _, ok := errors.AsType[E](err); return ok }}
}

// Of returns the word of the first cause that the error matches, the more telling ones
// before: those of a mount, the caller's own, those of pods and claims, the error's own
// (volume.WordedCause), and all others. "Unknown": there is none.
func Of(err error, own ...Cause) string {
	word := first(err, ofMounts(), own, ofPods())
	if cause, ok := errors.AsType[volume.WordedCause](err); ok && word == "" {
		word = cause.CauseWord()
	}
	return cmp.Or(word, first(err, others()), "Unknown")
}

func first(err error, all ...[]Cause) string {
	for _, causes := range all {
		for _, c := range causes {
			if c.Is(err) {
				return c.Word
			}
		}
	}
	return ""
}

func ofMounts() []Cause {
	return []Cause{
		Typed[*lazyunmount.Error]("Detached"),
		Sentinel("HelperMissing", mount.ErrHelperMissing),
		Sentinel("NoFilesystem", mount.ErrNoFilesystem),
		Sentinel("NameResolution", mount.ErrNameResolution),
		Sentinel("ConnectionRefused", mount.ErrConnectionRefused),
		Sentinel("AccessDenied", mount.ErrAccessDenied),
		Sentinel("NoSuchExport", mount.ErrNoSuchExport),
		Sentinel("VersionUnsupported", mount.ErrVersionUnsupported),
		Sentinel("StaleHandle", mount.ErrStaleHandle),
		Sentinel("BadOption", mount.ErrBadOption),
		Sentinel("WrongFilesystem", mount.ErrWrongFilesystem),
		Sentinel("NeedsFsck", mount.ErrNeedsFsck),
		Sentinel("ReadOnlyDevice", mount.ErrReadOnlyDevice),
		Sentinel("Busy", mount.ErrBusy),
		Sentinel("NotPermitted", mount.ErrNotPermitted),
		Sentinel("NoTarget", mount.ErrNoTarget),
		Sentinel("NoSource", mount.ErrNoSource),
		Sentinel("TargetIsLink", mount.ErrTargetIsLink),
		Sentinel("TargetReplaced", mount.ErrTargetReplaced),
		Sentinel("KindMismatch", mount.ErrKindMismatch),
		Sentinel("NoLockDaemon", mount.ErrNoLockDaemon),
		Sentinel("IO", mount.ErrIO),
	}
}

func ofPods() []Cause {
	return []Cause{
		Sentinel("NodeAffinity", podspec.ErrNodeAffinity),
		Sentinel("UsedByOtherPod", oncepod.ErrUsed),
		Sentinel("AttachLimitExceeded", volume.ErrAttachLimitExceeded),
		Typed[*rootdir.UnreadableRecordError]("UnreadableRecord"),
		Typed[*volume.UnsupportedError]("Unsupported"),
		Typed[*volume.MissingRoleError]("MissingRole"),
		Typed[*volume.InvalidSpecError]("InvalidSpec"),
		Sentinel("ClaimUnbound", claimbinding.ErrUnbound),
		Sentinel("ClaimLost", claimbinding.ErrLost),
		Sentinel("BoundElsewhere", claimbinding.ErrElsewhere),
	}
}

func others() []Cause {
	return []Cause{
		Sentinel("NotFound", volume.ErrNotFound),
		Sentinel("NotMountedAnymore", mountrecord.ErrNotMountedAnymore),
		Sentinel("DirectoryGone", rootdir.ErrDirectoryGone),
		Sentinel("OutcomeUnknown", rootdir.ErrOutcomeUnknown),
		Sentinel("NoRecord", rootdir.ErrNoRecord),
		Sentinel("TimedOut", mount.ErrTimedOut),
		Sentinel("TimedOut", context.DeadlineExceeded),
		Sentinel("Canceled", mount.ErrCanceled),
		Sentinel("Canceled", context.Canceled),
	}
}
