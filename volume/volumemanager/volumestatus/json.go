package volumestatus

import (
	"encoding/json"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager/internal/causeword"
	"github.com/podvol/podvol/volume/volumemanager/internal/statusjson"
)

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
//   - "condition" is there if the storage says that the volume is not in order.
func (s Status) MarshalJSON() ([]byte, error) {
	out := statusjson.Status{
		Namespace: s.Pod.Namespace, Pod: s.Pod.Name, PodUID: s.PodUID, Node: string(s.NodeName), Volume: s.Volume,
		Plugin: s.Plugin, Source: s.Source, Path: s.Path, Device: s.Device, State: string(s.State), Wanted: s.Wanted,
		Since: s.Since.UTC(), DurationSeconds: s.Duration.Seconds(),
		Operation: s.Operation, Began: s.Began.UTC(), Progress: statusjson.ProgressOf(s.Progress),
		Failures: s.Failures, NextRetry: s.NextRetry.UTC(), PersistentVolume: s.PersistentVolume,
		Server: statusjson.TroubleOf(s.Server),
	}
	if s.Claim.Name != "" {
		out.Claim = s.Claim.String()
	}
	if s.Err != nil {
		out.Error, out.Cause, out.Uncertain = s.Err.Error(), causeOf(s.Err), volume.IsUncertain(s.Err)
	}
	if s.Attachment != nil {
		out.Attachment = s.Attachment.Error()
	}
	if s.Condition != nil && s.Condition.Abnormal {
		out.Condition = s.Condition.Message
	}
	return json.Marshal(out)
}

// causeOf returns the word for the cause of an error.
func causeOf(err error) string {
	return causeword.Of(err, causeword.Typed[*AttachmentError]("Attachment"), causeword.Sentinel("Replaced", ErrReplaced),
		causeword.Sentinel("Vanished", ErrVanished), causeword.Sentinel("Withdrawn", ErrWithdrawn), causeword.Sentinel("PodEnded", ErrPodEnded))
}
