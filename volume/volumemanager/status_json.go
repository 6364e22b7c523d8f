package volumemanager

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumesource"
)

// statusJSON is [VolumeStatus] as JSON; its keys are part of the contract.
type statusJSON struct {
	Namespace        string        `json:"namespace"`
	Pod              string        `json:"pod"`
	PodUID           types.UID     `json:"podUID"`
	Node             string        `json:"node,omitempty"`
	Volume           string        `json:"volume"`
	Plugin           string        `json:"plugin"`
	Source           string        `json:"source"`
	Claim            string        `json:"claim,omitempty"`
	PersistentVolume string        `json:"persistentVolume,omitempty"`
	Path             string        `json:"path"`
	Device           string        `json:"device,omitempty"`
	State            string        `json:"state"`
	Wanted           bool          `json:"wanted"`
	Since            *time.Time    `json:"since,omitempty"`
	DurationSeconds  float64       `json:"durationSeconds"`
	Operation        string        `json:"operation,omitempty"`
	Began            *time.Time    `json:"began,omitempty"`
	Progress         *progressJSON `json:"progress,omitempty"`
	Failures         int           `json:"failures"`
	NextRetry        *time.Time    `json:"nextRetry,omitempty"`
	Error            string        `json:"error,omitempty"`
	Cause            string        `json:"cause,omitempty"`
	Uncertain        bool          `json:"uncertain,omitempty"`
	Attachment       string        `json:"attachment,omitempty"`
	Server           *serverJSON   `json:"server,omitempty"`
}

// serverJSON is [volumesource.Health] as JSON.
type serverJSON struct {
	Name     string     `json:"name"`
	Answers  bool       `json:"answers"`
	Since    *time.Time `json:"since,omitempty"`
	Failures int        `json:"failures"`
	RetryAt  *time.Time `json:"retryAt,omitempty"`
	Error    string     `json:"error,omitempty"`
}

// troubleOf describes a server's trouble; nil if none is known.
func troubleOf(h volumesource.Health) *serverJSON {
	if h.Source == "" || h.Answers && h.Failures == 0 {
		return nil
	}
	out := &serverJSON{Name: h.Source, Answers: h.Answers, Since: presentTime(h.Since), Failures: h.Failures, RetryAt: presentTime(h.RetryAt)}
	if h.Err != nil {
		out.Error = h.Err.Error()
	}
	return out
}

// progressJSON is [volume.Progress] as JSON.
type progressJSON struct {
	Doing string `json:"doing"`
	Done  int64  `json:"done"`
	Total int64  `json:"total,omitempty"`
}

// MarshalJSON writes the status for other programs, with keys that do not change. There
// is no way back: an error is more than its text.
//
//   - Times are as in RFC 3339, absent where they are zero. Durations are in seconds.
//   - The claim is "namespace/name", its volume "persistentVolume". "node" is there where
//     it is known.
//   - An error has its text ("error"), one word for its cause ("cause", such as "NotFound",
//     "HelperMissing" or "Unknown"), and whether it may have left something behind
//     ("uncertain").
//   - Trouble with the attachment is its text ("attachment").
//   - "server" (name, answers, since, failures, retryAt, error) is there only if mounts
//     from it have had no answer lately.
func (s VolumeStatus) MarshalJSON() ([]byte, error) {
	out := statusJSON{
		Namespace: s.Pod.Namespace, Pod: s.Pod.Name, PodUID: s.PodUID, Node: string(s.NodeName), Volume: s.Volume,
		Plugin: s.Plugin, Source: s.Source, Path: s.Path, Device: s.Device, State: string(s.State), Wanted: s.Wanted,
		Since: presentTime(s.Since), DurationSeconds: s.Duration.Seconds(),
		Operation: s.Operation, Began: presentTime(s.Began),
		Failures: s.Failures, NextRetry: presentTime(s.NextRetry), PersistentVolume: s.PersistentVolume,
	}
	if s.Claim.Name != "" {
		out.Claim = s.Claim.String()
	}
	if s.Progress != (volume.Progress{}) {
		out.Progress = &progressJSON{s.Progress.Doing, s.Progress.Done, s.Progress.Total}
	}
	if s.Err != nil {
		out.Error, out.Cause, out.Uncertain = s.Err.Error(), causeOf(s.Err), volume.IsUncertain(s.Err)
	}
	if s.Attachment != nil {
		out.Attachment = s.Attachment.Error()
	}
	out.Server = troubleOf(s.Server)
	return json.Marshal(out)
}

func presentTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// causeOf returns the word for the cause of an error: the first that it matches,
// the more telling ones before.
func causeOf(err error) string {
	for _, c := range causes() {
		if c.is(err) {
			return c.word
		}
	}
	return "Unknown"
}

type cause struct {
	word string
	is   func(error) bool
}

func causes() []cause {
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
		sentinel("NodeAffinity", ErrNodeAffinity),
		typed[*AttachmentError]("Attachment"),
		sentinel("Replaced", ErrReplaced),
		sentinel("UsedByOtherPod", ErrUsedByOtherPod),
		typed[*UnreadableRecordError]("UnreadableRecord"),
		typed[*volume.UnsupportedError]("Unsupported"),
		typed[*volume.MissingRoleError]("MissingRole"),
		typed[*volume.InvalidSpecError]("InvalidSpec"),
		sentinel("ClaimUnbound", claimbinding.ErrUnbound),
		sentinel("ClaimLost", claimbinding.ErrLost),
		sentinel("BoundElsewhere", claimbinding.ErrElsewhere),
		sentinel("NotFound", volume.ErrNotFound),
		sentinel("NotMountedAnymore", mountrecord.ErrNotMountedAnymore),
		sentinel("DirectoryGone", ErrDirectoryGone),
		sentinel("Vanished", ErrVanished),
		sentinel("OutcomeUnknown", ErrOutcomeUnknown),
		sentinel("NoRecord", ErrNoRecord),
		sentinel("Withdrawn", ErrWithdrawn),
		sentinel("PodEnded", ErrPodEnded),
		sentinel("TimedOut", mount.ErrTimedOut),
		sentinel("TimedOut", context.DeadlineExceeded),
		sentinel("Canceled", mount.ErrCanceled),
		sentinel("Canceled", context.Canceled),
	}
}

func sentinel(word string, target error) cause {
	return cause{word, func(err error) bool { return errors.Is(err, target) }}
}

func typed[E error](word string) cause {
	return cause{word, func(err error) bool { _, ok := errors.AsType[E](err); return ok }}
}
