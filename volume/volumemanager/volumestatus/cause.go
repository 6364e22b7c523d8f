package volumestatus

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

// causeOf returns one word, which other programs rely on, for the first cause that the error
// matches. The more telling ones come before: those of a mount, those of pods and claims, the
// error's own ([volume.WordedCause]), and all others. "Unknown": there is none.
func causeOf(err error) string {
	word := cmp.Or(firstOf(err, causesOfMounts()), firstOf(err, causesOfPods()))
	if cause, ok := errors.AsType[volume.WordedCause](err); ok && word == "" {
		word = cause.CauseWord()
	}
	return cmp.Or(word, firstOf(err, otherCauses()), "Unknown")
}

// cause is a word, and which errors it is for.
type cause struct {
	word string
	is   func(error) bool
}

// sentinel is for errors that match target.
func sentinel(word string, target error) cause {
	return cause{word, func(err error) bool { return errors.Is(err, target) }}
}

// typed is for errors that have an E in their chain.
func typed[E error](word string) cause {
	return cause{word, func(err error) bool { _, ok := errors.AsType[E](err); return ok }}
}

func firstOf(err error, causes []cause) string {
	for _, c := range causes {
		if c.is(err) {
			return c.word
		}
	}
	return ""
}

func causesOfMounts() []cause {
	return []cause{
		typed[*lazyunmount.Error]("Detached"),
		sentinel("HelperMissing", mount.ErrHelperMissing),
		sentinel("NoFilesystem", mount.ErrNoFilesystem),
		sentinel("NameResolution", mount.ErrNameResolution),
		sentinel("ConnectionRefused", mount.ErrConnectionRefused),
		sentinel("AccessDenied", mount.ErrAccessDenied),
		sentinel("NoSuchExport", mount.ErrNoSuchExport),
		sentinel("VersionUnsupported", mount.ErrVersionUnsupported),
		sentinel("StaleHandle", mount.ErrStaleHandle),
		sentinel("BadOption", mount.ErrBadOption),
		sentinel("WrongFilesystem", mount.ErrWrongFilesystem),
		sentinel("NeedsFsck", mount.ErrNeedsFsck),
		sentinel("ReadOnlyDevice", mount.ErrReadOnlyDevice),
		sentinel("Busy", mount.ErrBusy),
		sentinel("NotPermitted", mount.ErrNotPermitted),
		sentinel("NoTarget", mount.ErrNoTarget),
		sentinel("NoSource", mount.ErrNoSource),
		sentinel("TargetIsLink", mount.ErrTargetIsLink),
		sentinel("TargetReplaced", mount.ErrTargetReplaced),
		sentinel("KindMismatch", mount.ErrKindMismatch),
		sentinel("NoLockDaemon", mount.ErrNoLockDaemon),
		sentinel("IO", mount.ErrIO),
	}
}

func causesOfPods() []cause {
	return []cause{
		typed[*AttachmentError]("Attachment"),
		sentinel("Replaced", ErrReplaced),
		sentinel("Vanished", ErrVanished),
		sentinel("Withdrawn", ErrWithdrawn),
		sentinel("PodEnded", ErrPodEnded),
		sentinel("NodeAffinity", podspec.ErrNodeAffinity),
		sentinel("UsedByOtherPod", oncepod.ErrUsed),
		sentinel("AttachLimitExceeded", volume.ErrAttachLimitExceeded),
		typed[*rootdir.UnreadableRecordError]("UnreadableRecord"),
		typed[*volume.UnsupportedError]("Unsupported"),
		typed[*volume.MissingRoleError]("MissingRole"),
		typed[*volume.InvalidSpecError]("InvalidSpec"),
		sentinel("ClaimUnbound", claimbinding.ErrUnbound),
		sentinel("ClaimLost", claimbinding.ErrLost),
		sentinel("BoundElsewhere", claimbinding.ErrElsewhere),
	}
}

func otherCauses() []cause {
	return []cause{
		sentinel("NotFound", volume.ErrNotFound),
		sentinel("NotMountedAnymore", mountrecord.ErrNotMountedAnymore),
		sentinel("DirectoryGone", rootdir.ErrDirectoryGone),
		sentinel("OutcomeUnknown", rootdir.ErrOutcomeUnknown),
		sentinel("NoRecord", rootdir.ErrNoRecord),
		sentinel("TimedOut", mount.ErrTimedOut),
		sentinel("TimedOut", context.DeadlineExceeded),
		sentinel("Canceled", mount.ErrCanceled),
		sentinel("Canceled", context.Canceled),
	}
}
