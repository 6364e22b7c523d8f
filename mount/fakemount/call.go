package fakemount

import (
	"encoding/json"
	"log/slog"
	"slices"
	"strings"

	"github.com/podvol/podvol/mount"
)

// The further operations named by [Call].Op: the upper rungs of an unmount, and
// the check before force whether a busy mount's server answers. A fault that
// makes the check hang means that the server does not answer.
const (
	OpUnmountForce = "unmount-force"
	OpUnmountLazy  = "unmount-lazy"
	OpStatfs       = "statfs"
)

// Call is one mount or unmount of a [Mounter], or one check on the way.
// Sensitive options never show, however it is printed, encoded or logged.
type Call struct {
	// Op is [mount.OpMount], [mount.OpUnmount], [OpUnmountForce], [OpUnmountLazy] or
	// [OpStatfs].
	Op string
	// Source, FSType and Options come from the request; empty for an unmount.
	Source, Target, FSType string
	Options                []string
	// Rung is the rung of the ladder of an unmount: the normal unmount after a
	// forced one has RungForce. It is RungNone for a mount.
	Rung mount.Rung

	// secret is a function since printing, reflection and encoding stop at
	// functions, even where a Call is a private field of something else.
	secret func() []string
}

func newCall(op string, rung mount.Rung, r mount.Request) Call {
	call := Call{Op: op, Rung: rung, Source: r.Source, Target: r.Target, FSType: r.FSType, Options: slices.Clone(r.Options)}
	if len(r.Sensitive) > 0 {
		sensitive := slices.Clone(r.Sensitive)
		call.secret = func() []string { return slices.Clone(sensitive) }
	}
	return call
}

// Sensitive returns a copy of the request's sensitive options.
func (c Call) Sensitive() []string {
	if c.secret == nil {
		return nil
	}
	return c.secret()
}

// Equal reports whether two calls are the same, sensitive options included.
func (c Call) Equal(other Call) bool {
	return c.Op == other.Op && c.Rung == other.Rung && c.Source == other.Source && c.Target == other.Target &&
		c.FSType == other.FSType && slices.Equal(c.Options, other.Options) && slices.Equal(c.Sensitive(), other.Sensitive())
}

// String formats the call as the command line that would do the same, with
// every sensitive option masked.
func (c Call) String() string {
	switch c.Op {
	case mount.OpUnmount:
		return "umount " + c.Target
	case OpUnmountForce:
		return "umount --force " + c.Target
	case OpUnmountLazy:
		return "umount --lazy " + c.Target
	case OpStatfs:
		return "stat --file-system " + c.Target
	}
	return c.Op + " " + strings.Join(c.request().Args(), " ")
}

// GoString is String.
func (c Call) GoString() string { return c.String() }

// LogValue implements [slog.LogValuer] by String.
func (c Call) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalJSON encodes the exported fields, Rung by its name and with one
// masked option if there are sensitive ones.
func (c Call) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Op      string
		Source  string `json:",omitempty"`
		Target  string
		FSType  string   `json:",omitempty"`
		Options []string `json:",omitempty"`
		Rung    string
	}{c.Op, c.Source, c.Target, c.FSType, c.request().MaskedOptions(), c.Rung.String()})
}

// request has a Sensitive that may be formatted only by what masks it.
func (c Call) request() mount.Request {
	return mount.Request{Source: c.Source, Target: c.Target, FSType: c.FSType, Options: c.Options, Sensitive: c.Sensitive()}
}

func (c Call) clone() Call {
	c.Options = slices.Clone(c.Options)
	return c
}
