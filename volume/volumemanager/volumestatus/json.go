package volumestatus

import (
	"encoding/json"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumesource"
)

// statusJSON is a [Status] for other programs. Its keys do not change.
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
	Kept             bool          `json:"kept,omitempty"`
	Since            time.Time     `json:"since,omitzero"`
	DurationSeconds  float64       `json:"durationSeconds"`
	Operation        string        `json:"operation,omitempty"`
	Began            time.Time     `json:"began,omitzero"`
	Progress         *progressJSON `json:"progress,omitempty"`
	Failures         int           `json:"failures"`
	NextRetry        time.Time     `json:"nextRetry,omitzero"`
	Error            string        `json:"error,omitempty"`
	Cause            string        `json:"cause,omitempty"`
	Advice           string        `json:"advice,omitempty"`
	Uncertain        bool          `json:"uncertain,omitempty"`
	WaitsFor         string        `json:"waitsFor,omitempty"`
	Attachment       string        `json:"attachment,omitempty"`
	Server           *serverJSON   `json:"server,omitempty"`
	Condition        string        `json:"condition,omitempty"`
}

// serverJSON is a [volumesource.Health].
type serverJSON struct {
	Name     string    `json:"name"`
	Answers  bool      `json:"answers"`
	Since    time.Time `json:"since,omitzero"`
	Failures int       `json:"failures"`
	RetryAt  time.Time `json:"retryAt,omitzero"`
	Error    string    `json:"error,omitempty"`
}

// troubleOf is nil if no trouble of the server is known.
func troubleOf(h volumesource.Health) *serverJSON {
	if h.Source == "" || h.Answers && h.Failures == 0 {
		return nil
	}
	out := &serverJSON{Name: h.Source, Answers: h.Answers, Since: h.Since.UTC(), Failures: h.Failures, RetryAt: h.RetryAt.UTC()}
	if h.Err != nil {
		out.Error = h.Err.Error()
	}
	return out
}

// progressJSON is a [volume.Progress].
type progressJSON struct {
	Doing string `json:"doing"`
	Done  int64  `json:"done"`
	Total int64  `json:"total,omitempty"`
}

// progressOf is nil where nothing was said.
func progressOf(p volume.Progress) *progressJSON {
	if p == (volume.Progress{}) {
		return nil
	}
	return (*progressJSON)(&p)
}

// MarshalJSON writes the status for other programs, with keys that do not change. There
// is no way back: an error is more than its text.
//
//   - Times are as in RFC 3339, absent where they are zero. Durations are in seconds.
//   - The claim is "namespace/name", its volume "persistentVolume". "node" is there where
//     it is known.
//   - An error has its text ("error"), one word for its cause ("cause", such as "NotFound",
//     "HelperMissing" or "Unknown"), what to do about it ("advice", the end of the text where
//     there is one), and whether it may have left something behind ("uncertain").
//   - "kept" is there if it is true.
//   - "waitsFor" is [Status.WaitsFor].
//   - Trouble with the attachment is its text ("attachment").
//   - "server" (name, answers, since, failures, retryAt, error) is there only if mounts
//     from it have had no answer lately.
//   - "condition" is there if the storage says that the volume is not in order.
func (s Status) MarshalJSON() ([]byte, error) {
	out := statusJSON{
		Namespace: s.Pod.Namespace, Pod: s.Pod.Name, PodUID: s.PodUID, Node: string(s.NodeName), Volume: s.Volume,
		Plugin: s.Plugin, Source: s.Source, Path: s.Path, Device: s.Device, State: string(s.State), Wanted: s.Wanted, Kept: s.Kept,
		Since: s.Since.UTC(), DurationSeconds: s.Duration.Seconds(),
		Operation: s.Operation, Began: s.Began.UTC(), Progress: progressOf(s.Progress),
		Failures: s.Failures, NextRetry: s.NextRetry.UTC(), PersistentVolume: s.PersistentVolume,
		Server: troubleOf(s.Server), WaitsFor: s.WaitsFor(),
	}
	if s.Claim.Name != "" {
		out.Claim = s.Claim.String()
	}
	if s.Err != nil {
		out.Error, out.Cause, out.Advice, out.Uncertain = s.Err.Error(), causeOf(s.Err), adviceOf(s.Err), volume.IsUncertain(s.Err)
	}
	if s.Attachment != nil {
		out.Attachment = s.Attachment.Error()
	}
	if s.Condition != nil && s.Condition.Abnormal {
		out.Condition = s.Condition.Message
	}
	return json.Marshal(out)
}

// adviceOf is what the first error in a chain advises that gives advice; empty: none does.
func adviceOf(err error) string {
	if e, ok := errors.AsType[interface {
		error
		Advice() string
	}](err); ok {
		return e.Advice()
	}
	return ""
}
