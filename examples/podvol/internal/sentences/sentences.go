// Package sentences writes a log for people who have just called a command: each record is a
// sentence with the pod and the volume that it is about, without time and level.
package sentences

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/table"
)

// Number is so many of something.
func Number(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

// Handler is a slog.Handler that writes sentences.
type Handler struct {
	out   io.Writer
	least slog.Level
	said  *said
	given []slog.Attr
	group string
}

// said is what was written last.
type said struct {
	mu   sync.Mutex
	text string
}

var _ slog.Handler = (*Handler)(nil)

// New returns a handler that writes what is of a level or a higher one. A sentence that was
// the last one already is not written again.
func New(out io.Writer, least slog.Level) *Handler {
	return &Handler{out: out, least: least, said: new(said)}
}

// Enabled implements slog.Handler.
func (h *Handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.least }

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *h
	next.given = append(next.given[:len(next.given):len(next.given)], h.named(attrs)...)
	return &next
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	next := *h
	next.group += name + "."
	return &next
}

func (h *Handler) named(attrs []slog.Attr) (all []slog.Attr) {
	for _, a := range attrs {
		all = append(all, slog.Attr{Key: h.group + a.Key, Value: a.Value})
	}
	return all
}

// Handle implements slog.Handler.
func (h *Handler) Handle(_ context.Context, r slog.Record) error {
	var own []slog.Attr
	r.Attrs(func(a slog.Attr) bool {
		own = append(own, a)
		return true
	})
	text := sentence(r.Message, append(h.given[:len(h.given):len(h.given)], h.named(own)...))
	h.said.mu.Lock()
	defer h.said.mu.Unlock()
	if text == h.said.text {
		return nil
	}
	h.said.text = text
	return table.Paragraph(h.out, "", text)
}

// sentence is "podvol: SUBJECT: MESSAGE: ERROR; ADVICE (KEY VALUE, …)".
func sentence(message string, attrs []slog.Attr) string {
	var about, cause, advice string
	var rest []string
	for _, a := range attrs {
		value := a.Value.Resolve().String()
		switch a.Key {
		case "pod", "object":
			about = join(about, value)
		case "podUID", "claim":
			about = join(about, strings.TrimSuffix(a.Key, "UID")+" "+value)
		case "volume":
			about = join(about, value)
		case "error":
			cause += ": " + value
		case "advice":
			advice += "; " + value
		case "reason": // which is in the message
		default:
			rest = append(rest, a.Key+" "+plaintext.Cell(value))
		}
	}
	var b strings.Builder
	b.WriteString("podvol: ")
	if about != "" {
		b.WriteString(plaintext.Cell(about) + ": ")
	}
	b.WriteString(strings.TrimSpace(message + cause + advice))
	if len(rest) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(rest, ", "))
	}
	return b.String()
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + " " + b
}
