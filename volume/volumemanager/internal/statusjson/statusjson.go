// Package statusjson has the form in which other programs are told of a volume's status. Its
// keys do not change.
package statusjson

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumesource"
)

// Status is one volume's status.
type Status struct {
	Namespace        string    `json:"namespace"`
	Pod              string    `json:"pod"`
	PodUID           types.UID `json:"podUID"`
	Node             string    `json:"node,omitempty"`
	Volume           string    `json:"volume"`
	Plugin           string    `json:"plugin"`
	Source           string    `json:"source"`
	Claim            string    `json:"claim,omitempty"`
	PersistentVolume string    `json:"persistentVolume,omitempty"`
	Path             string    `json:"path"`
	Device           string    `json:"device,omitempty"`
	State            string    `json:"state"`
	Wanted           bool      `json:"wanted"`
	Since            time.Time `json:"since,omitzero"`
	DurationSeconds  float64   `json:"durationSeconds"`
	Operation        string    `json:"operation,omitempty"`
	Began            time.Time `json:"began,omitzero"`
	Progress         *Progress `json:"progress,omitempty"`
	Failures         int       `json:"failures"`
	NextRetry        time.Time `json:"nextRetry,omitzero"`
	Error            string    `json:"error,omitempty"`
	Cause            string    `json:"cause,omitempty"`
	Uncertain        bool      `json:"uncertain,omitempty"`
	Attachment       string    `json:"attachment,omitempty"`
	Server           *Server   `json:"server,omitempty"`
	Condition        string    `json:"condition,omitempty"`
}

// Server is [volumesource.Health].
type Server struct {
	Name     string    `json:"name"`
	Answers  bool      `json:"answers"`
	Since    time.Time `json:"since,omitzero"`
	Failures int       `json:"failures"`
	RetryAt  time.Time `json:"retryAt,omitzero"`
	Error    string    `json:"error,omitempty"`
}

// TroubleOf describes a server's trouble; nil if none is known.
func TroubleOf(h volumesource.Health) *Server {
	if h.Source == "" || h.Answers && h.Failures == 0 {
		return nil
	}
	out := &Server{Name: h.Source, Answers: h.Answers, Since: h.Since.UTC(), Failures: h.Failures, RetryAt: h.RetryAt.UTC()}
	if h.Err != nil {
		out.Error = h.Err.Error()
	}
	return out
}

// Progress is [volume.Progress].
type Progress struct {
	Doing string `json:"doing"`
	Done  int64  `json:"done"`
	Total int64  `json:"total,omitempty"`
}

// ProgressOf is nil where nothing was said.
func ProgressOf(p volume.Progress) *Progress {
	if p == (volume.Progress{}) {
		return nil
	}
	return &Progress{p.Doing, p.Done, p.Total}
}
